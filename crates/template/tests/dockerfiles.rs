//! Small Dockerfiles and what the reference says of them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use cove_template::{Action, Config, CopySource, Dockerfile, Evaluated, Origin, Variables};

const ARCH: &str = "amd64";

/// The last stage over an empty base with one variable.
fn evaluate(text: &str, args: &[(&str, &str)]) -> Result<Evaluated, String> {
    let file = Dockerfile::parse(text).map_err(|error| error.to_string())?;
    let args = args
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let variables = Variables::new(args.collect(), ARCH);
    let base = Evaluated {
        config: Config {
            env: BTreeMap::from([("PATH".into(), "/bin".into())]),
            cmd: vec!["sh".into()],
            ..Config::default()
        },
        ..Evaluated::default()
    };
    let stages = file
        .needed(None, &variables, ARCH)
        .map_err(|error| error.to_string())?;
    let mut done: BTreeMap<usize, Evaluated> = BTreeMap::new();
    for stage in &stages {
        let from = file
            .base_of(*stage, &variables, ARCH)
            .map_err(|error| error.to_string())?;
        let base = match from {
            Origin::Stage(other) => Evaluated {
                steps: Vec::new(),
                ..done[&other].clone()
            },
            _ => base.clone(),
        };
        let evaluated = file.evaluate(*stage, base, &variables);
        done.insert(*stage, evaluated.map_err(|error| error.to_string())?);
    }
    Ok(done.remove(stages.last().unwrap()).unwrap())
}

fn config(text: &str) -> Config {
    evaluate(text, &[]).unwrap().config
}

/// The commands of all `RUN`s.
fn runs(text: &str, args: &[(&str, &str)]) -> Vec<(Vec<String>, BTreeMap<String, String>)> {
    let steps = evaluate(text, args).unwrap().steps;
    let runs = steps.into_iter().filter_map(|step| match step.action {
        Action::Run { argv, env, .. } => Some((argv, env)),
        _ => None,
    });
    runs.collect()
}

fn variable(text: &str, args: &[(&str, &str)], name: &str) -> Option<String> {
    runs(text, args).remove(0).1.remove(name)
}

#[test]
fn scopes_of_args_are_those_of_the_reference() {
    let run = |file: &str| format!("{file}\nRUN x\n");
    for (file, args, expected) in [
        // Before FROM: for FROM alone, until the stage declares it.
        ("ARG V=1\nFROM a", &[][..], None),
        ("ARG V=1\nFROM a\nARG V", &[], Some("1")),
        ("ARG V=1\nFROM a\nARG V=2", &[], Some("2")),
        ("ARG V=1\nFROM a\nARG V", &[("V", "9")], Some("9")),
        ("ARG V=1\nFROM a\nARG V=2", &[("V", "9")], Some("9")),
        // Without an ARG a value from outside is not seen.
        ("FROM a", &[("V", "9")], None),
        ("FROM a\nARG V", &[], None),
        ("FROM a\nARG V=", &[], Some("")),
        // ENV wins over ARG.
        ("FROM a\nARG V=1\nENV V=env", &[("V", "9")], Some("env")),
        ("FROM a\nENV V=env\nARG V=1", &[], Some("env")),
        // One ARG uses another, in order.
        ("FROM a\nARG W=w\nARG V=${W}x", &[], Some("wx")),
        ("FROM a\nARG V=${W:-d}", &[], Some("d")),
        // Inherited by a stage that begins from this one, and by no other.
        ("FROM a AS one\nARG V=1\nFROM one", &[], Some("1")),
        ("FROM a AS one\nARG V=1\nFROM a", &[], None),
        (
            "FROM a\nARG TARGETARCH\nENV V=$TARGETARCH",
            &[],
            Some("amd64"),
        ),
        ("FROM a\nENV V=$TARGETARCH", &[], Some("")),
    ] {
        assert_eq!(
            variable(&run(file), args, "V").as_deref(),
            expected,
            "{file}"
        );
    }
    // Later ones are not seen by earlier steps.
    assert_eq!(variable("FROM a\nRUN x\nARG V=1\n", &[], "V"), None);
    // Proxies need no ARG, and change no key.
    let step = |args: &[(&str, &str)]| evaluate("FROM a\nRUN x", args).unwrap().steps.remove(0);
    let plain = step(&[]);
    let proxied = step(&[("http_proxy", "http://p")]);
    assert_ne!(plain.action, proxied.action);
    assert_eq!(plain.key("k", None), proxied.key("k", None));
}

#[test]
fn bases_take_their_names_from_global_args() {
    let base = |text: &str, args: &[(&str, &str)]| {
        let file = Dockerfile::parse(text).unwrap();
        let args = args
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let variables = Variables::new(args.collect(), ARCH);
        let last = file.stages.len() - 1;
        file.base_of(last, &variables, ARCH)
            .map_err(|error| error.to_string())
    };
    let named = |name: &str| Ok(Origin::Named(name.to_owned()));
    assert_eq!(base("ARG T=1\nFROM a:$T", &[]), named("a:1"));
    assert_eq!(base("ARG T=1\nFROM a:${T}", &[("T", "2")]), named("a:2"));
    assert_eq!(base("FROM a:${T:-x}", &[]), named("a:x"));
    assert_eq!(base("FROM scratch", &[]), Ok(Origin::Scratch));
    assert_eq!(base("FROM a AS B\nFROM b", &[]), Ok(Origin::Stage(0)));
    assert_eq!(base("FROM a AS b\nFROM 0", &[]), named("0"));
    assert_eq!(base("FROM --platform=linux/amd64 a", &[]), named("a"));
    assert_eq!(base("FROM --platform=$TARGETPLATFORM a", &[]), named("a"));
    assert!(
        base("FROM --platform=linux/riscv64 a", &[])
            .unwrap_err()
            .contains("line 1")
    );
    assert!(base("FROM $NOTHING", &[]).unwrap_err().contains("is empty"));
}

#[test]
fn variables_of_one_instruction_see_the_values_before_it() {
    let env = config("FROM a\nENV abc=hello\nENV abc=bye def=$abc\nENV ghi=$abc\n").env;
    assert_eq!(
        (
            env["abc"].as_str(),
            env["def"].as_str(),
            env["ghi"].as_str()
        ),
        ("bye", "hello", "bye")
    );
    let env = config("FROM a\nENV PATH=/x:$PATH A=\"b c\" D=e\\ f G='$PATH'\nENV OLD a  b\n").env;
    assert_eq!(env["PATH"], "/x:/bin");
    assert_eq!(
        (env["A"].as_str(), env["D"].as_str(), env["G"].as_str()),
        ("b c", "e f", "$PATH")
    );
    assert_eq!(env["OLD"], "a  b");
}

#[test]
fn commands_have_their_forms() {
    let text = "FROM a\nRUN echo $HOME && \\\n  # a comment\n\n  ls\nRUN [\"ls\", \"-l\"]\nSHELL [\"/bin/bash\", \"-c\"]\nRUN x\nRUN ['no json']\n";
    let all: Vec<_> = runs(text, &[]).into_iter().map(|(argv, _)| argv).collect();
    assert_eq!(all[0], ["/bin/sh", "-c", "echo $HOME &&   ls"]);
    assert_eq!(all[1], ["ls", "-l"]);
    assert_eq!(all[2], ["/bin/bash", "-c", "x"]);
    assert_eq!(all[3], ["/bin/bash", "-c", "['no json']"]);
}

#[test]
fn here_documents_are_scripts_or_the_shells_own() {
    let text = "FROM a\nRUN <<EOF\necho 1\necho \"$X\"\nEOF\nRUN cat <<-'A' > /x\n\tbody $X\n\tA\nRUN <<EOF\n#!/usr/bin/env python3\nprint(1)\nEOF\nRUN y\n";
    let all: Vec<_> = runs(text, &[]).into_iter().map(|(argv, _)| argv).collect();
    assert_eq!(all[0][2], "echo 1\necho \"$X\"\n");
    assert_eq!(all[1][2], "cat <<-'A' > /x\nbody $X\nA\n");
    assert_eq!(all[2], ["/usr/bin/env", "python3"]);
    assert_eq!(all[3][2], "y");
    let steps = evaluate(
        "FROM a\nARG V=1\nCOPY <<one <<'two' /d/\n$V \"q\"\none\n$V\ntwo\n",
        &[],
    )
    .unwrap()
    .steps;
    let Action::Copy { sources, dest, .. } = &steps[0].action else {
        panic!("{steps:?}");
    };
    let texts = sources.iter().map(|source| match source {
        CopySource::Document(document) => document.content.as_str(),
        CopySource::Path(path) => panic!("{path}"),
    });
    assert_eq!(texts.collect::<Vec<_>>(), ["1 \"q\"\n", "$V\n"]);
    assert_eq!(dest, "/d/");
}

#[test]
fn the_escape_directive_changes_continuations_and_escapes() {
    let text = "# escape=`\nFROM a\nENV A=c:\\dir`\n B=x`$Y\nRUN one `\n two\n";
    let evaluated = evaluate(text, &[]).unwrap();
    assert_eq!(evaluated.config.env["A"], "c:\\dir");
    assert_eq!(evaluated.config.env["B"], "x$Y");
    assert_eq!(runs(text, &[])[0].0[2], "one  two");
}

#[test]
fn working_directories_add_up() {
    let at = |text: &str| config(text).workdir.unwrap();
    assert_eq!(
        at("FROM a\nWORKDIR /a\nWORKDIR b\nWORKDIR c/../d/"),
        "/a/b/d"
    );
    assert_eq!(at("FROM a\nENV D=/x\nWORKDIR $D/$NONE/y"), "/x/y");
    assert_eq!(at("FROM a\nWORKDIR ../.."), "/");
    let steps = evaluate(
        "FROM a\nWORKDIR /w\nCOPY a b/\nCOPY a .\nCOPY a /c\nCOPY a ./d",
        &[],
    )
    .unwrap()
    .steps;
    let to = steps.iter().filter_map(|step| match &step.action {
        Action::Copy { dest, .. } => Some(dest.as_str()),
        _ => None,
    });
    assert_eq!(to.collect::<Vec<_>>(), ["/w/b/", "/w/", "/c", "/w/d"]);
}

#[test]
fn what_an_image_says_of_itself_is_kept() {
    let text = "FROM a\nENTRYPOINT [\"/e\"]\nCMD one two\nEXPOSE 80 53/UDP 8000-8010/tcp 80\nLABEL a=b \"c d\"=\"e f\"\nMAINTAINER me\nSTOPSIGNAL SIGINT\nHEALTHCHECK --interval=5s CMD curl x\nUSER app:staff\nONBUILD RUN later\n";
    let config = config(text);
    assert_eq!(config.entrypoint, ["/e"]);
    assert_eq!(config.cmd, ["/bin/sh", "-c", "one two"]);
    assert_eq!(config.expose, ["53/udp", "80/tcp", "8000-8010/tcp"]);
    assert_eq!(config.labels["c d"], "e f");
    assert_eq!(config.labels["maintainer"], "me");
    assert_eq!(config.stop_signal.as_deref(), Some("SIGINT"));
    let check = config.healthcheck.unwrap();
    assert_eq!(check.command, ["/bin/sh", "-c", "curl x"]);
    assert_eq!(check.options["interval"], "5s");
    assert_eq!(config.user.as_deref(), Some("app:staff"));
    assert_eq!(config.onbuild, ["RUN later"]);
}

#[test]
fn an_entrypoint_takes_the_bases_arguments_away() {
    assert!(config("FROM a\nENTRYPOINT [\"/e\"]").cmd.is_empty());
    assert_eq!(
        config("FROM a\nCMD [\"x\"]\nENTRYPOINT [\"/e\"]").cmd,
        ["x"]
    );
    assert_eq!(config("FROM a").cmd, ["sh"]);
    assert!(
        config("FROM a\nHEALTHCHECK NONE")
            .healthcheck
            .unwrap()
            .command
            .is_empty()
    );
}

#[test]
fn triggers_of_a_base_run_first_and_once() {
    let text = "FROM a AS base\nONBUILD RUN first\nONBUILD ENV A=1\nRUN zero\nFROM base AS next\nRUN second\nFROM next\nRUN third\n";
    let evaluated = evaluate(text, &[]).unwrap();
    assert_eq!(evaluated.config.env["A"], "1");
    let all: Vec<_> = runs(text, &[])
        .into_iter()
        .map(|(argv, _)| argv[2].clone())
        .collect();
    assert_eq!(all, ["third"]);
    let two = text.split("FROM next").next().unwrap();
    let all: Vec<_> = runs(two, &[])
        .into_iter()
        .map(|(argv, _)| argv[2].clone())
        .collect();
    assert_eq!(all, ["first", "second"]);
}

#[test]
fn only_needed_stages_are_built() {
    let text = "FROM a AS one\nFROM b AS two\nFROM c AS three\nCOPY --from=one /x /y\nCOPY --from=other:1 /x /z\nFROM d\nCOPY --from=2 /y /\n";
    let file = Dockerfile::parse(text).unwrap();
    let variables = Variables::new(BTreeMap::new(), ARCH);
    assert_eq!(file.needed(None, &variables, ARCH).unwrap(), [0, 2, 3]);
    assert_eq!(file.needed(Some("two"), &variables, ARCH).unwrap(), [1]);
    assert!(file.needed(Some("none"), &variables, ARCH).is_err());
}

#[test]
fn what_is_not_supported_or_wrong_names_its_line() {
    for (text, expected) in [
        ("", "line 1: there is no FROM"),
        ("# c\nRUN x\nFROM a", "line 2: RUN stands before"),
        (
            "FROM a\n\nNONSENSE x",
            "line 3: 'NONSENSE' is not an instruction",
        ),
        ("FROM a\nVOLUME /d", "line 2: VOLUME is not supported"),
        (
            "FROM a\nRUN --mount=type=secret,id=x cat",
            "line 2: RUN --mount=type=secret is not supported",
        ),
        (
            "FROM a\nRUN --mount=type=cache,target=/c cat",
            "line 2: RUN --mount=type=cache is not supported",
        ),
        (
            "FROM a\nRUN --mount=target=/c cat",
            "line 2: RUN --mount=type=bind is not supported",
        ),
        (
            "FROM a\nRUN --network=host x",
            "line 2: RUN --network=host is not supported",
        ),
        (
            "FROM a\nRUN --security=insecure x",
            "line 2: RUN --security is not supported",
        ),
        (
            "FROM a\nCOPY --link a b",
            "line 2: COPY --link is not supported",
        ),
        (
            "FROM a\nCOPY --parents a b",
            "line 2: COPY --parents is not supported",
        ),
        (
            "FROM a\nADD https://x/y /z",
            "line 2: ADD from a URL is not supported",
        ),
        (
            "FROM a\nADD --checksum=sha256:0 x /z",
            "line 2: ADD --checksum is not supported",
        ),
        ("FROM a\nCOPY a b c", "line 2: with more than one source"),
        ("FROM a\nCOPY a", "line 2: COPY needs at least one source"),
        (
            "FROM a\nCOPY --chmod=u+x a b",
            "line 2: --chmod=u+x is not supported",
        ),
        ("FROM a\nENV", "line 2: ENV needs an argument"),
        ("FROM a\nENV a=1 b", "line 2: 'b' is not name=value"),
        ("FROM a\nSHELL bash", "line 2: SHELL needs a JSON array"),
        ("FROM a\nEXPOSE http", "line 2: 'http' is not a port"),
        ("FROM a\nONBUILD ONBUILD RUN x", "line 2: ONBUILD ONBUILD"),
        (
            "FROM a\nONBUILD FROM x",
            "line 2: ONBUILD FROM is not allowed",
        ),
        (
            "FROM a\nRUN <<EOF\nx",
            "line 2: the here-document EOF has no end",
        ),
        ("FROM a b", "line 1: expected FROM image"),
        (
            "FROM a AS x\nFROM b AS x",
            "line 2: there are two stages 'x'",
        ),
        (
            "FROM a AS x\nCOPY --from=x a b",
            "line 2: a stage cannot copy from itself",
        ),
        ("FROM a\nUSER a b", "line 2: USER needs one user"),
        (
            "FROM a\nWORKDIR \"/a",
            "line 2: a double quote is not closed",
        ),
        ("FROM a\nENV A=\"${B:?set B}\"\n", "line 2: B: set B"),
        ("FROM a\nHEALTHCHECK x", "line 2: expected HEALTHCHECK"),
        ("FROM a\n# escape=`\nRUN []", "line 3: RUN [] runs nothing"),
        ("# escape=x\nFROM a", "line 1: escape must be"),
    ] {
        let error = evaluate(text, &[]).map(|done| done.config).unwrap_err();
        assert!(error.starts_with(expected), "{text:?}: {error}");
    }
}

#[test]
fn keys_depend_on_everything_that_a_step_does() {
    let key = |text: &str, args: &[(&str, &str)]| {
        let steps = evaluate(text, args).unwrap().steps;
        steps.last().unwrap().key("parent", None)
    };
    let base = key("FROM a\nRUN x", &[]);
    for other in [
        "FROM a\nRUN y",
        "FROM a\nUSER u\nRUN x",
        "FROM a\nENV A=1\nRUN x",
        "FROM a\nARG A=1\nRUN x",
        "FROM a\nSHELL [\"/bin/bash\", \"-c\"]\nRUN x",
        "FROM a\nWORKDIR /w\nRUN x",
        "FROM a\nRUN --network=none x",
        "FROM a\nRUN [\"x\"]",
    ] {
        assert_ne!(key(other, &[]), base, "{other}");
    }
    // What it does not use.
    for same in [
        "FROM a\nLABEL a=b\nRUN x",
        "FROM a\nCMD y\nEXPOSE 80\nRUN x",
        "FROM a AS z\nRUN   x",
    ] {
        assert_eq!(key(same, &[]), base, "{same}");
    }
    assert_eq!(key("FROM a\nRUN x", &[("UNUSED", "1")]), base);
    let copy = |text: &str| evaluate(text, &[]).unwrap().steps.remove(0);
    let plain = copy("FROM a\nCOPY a b");
    assert_ne!(plain.key("p", Some("1")), plain.key("p", Some("2")));
    assert_ne!(plain.key("p", Some("1")), plain.key("q", Some("1")));
    for other in [
        "COPY a c",
        "COPY --chown=1 a b",
        "COPY --chmod=600 a b",
        "ADD a b",
        "COPY --exclude=x a b",
    ] {
        let other = copy(&format!("FROM a\n{other}"));
        assert_ne!(other.key("p", Some("1")), plain.key("p", Some("1")));
    }
}

#[test]
fn variables_that_grow_without_end_are_refused() {
    let doubling = "ARG a=$a$a\n".repeat(40);
    let begin = "ARG a=0123456789\n";
    let many = format!("ENV a={}\n", "x".repeat(60_000));
    let used = "LABEL l=$a$a\n".repeat(100);
    let unused = "WORKDIR /${none:+$a}\n".repeat(150);
    let document = "$a".repeat(10);
    for text in [
        format!("{begin}{doubling}FROM base\n"),
        format!("FROM base\n{begin}{doubling}"),
        format!(
            "FROM base\n{}",
            format!("{begin}{doubling}").replace("ARG", "ENV")
        ),
        format!(
            "FROM base\n{begin}{}",
            "ARG a=\"${a}${a:-$a}\"\n".repeat(40)
        ),
        format!("FROM base\n{many}{used}"),
        format!("FROM base\n{many}{unused}"),
        format!("FROM base\n{many}COPY <<EOF /x\n{document}\nEOF\n"),
        format!("FROM base\n{many}ENV b=$a\nENV c=$a\n"),
        format!("FROM base\n{many}ENV b=${{none:-$a$a$a}}\n"),
    ] {
        let error = evaluate(&text, &[]).unwrap_err();
        assert!(error.contains("more than"), "{error}");
        assert!(error.starts_with("line "), "{error}");
    }
    // What is not variables may be as long as the file.
    let long = "x".repeat(200_000);
    assert!(evaluate(&format!("FROM base\nCOPY <<EOF /x\n{long}\nEOF\n"), &[]).is_ok());
}

#[test]
fn sources_of_one_instruction_are_limited_and_documents_come_in_order() {
    let copy = |sources: usize| format!("FROM base\nCOPY {}/x/\n", "a ".repeat(sources));
    assert!(evaluate(&copy(1_000), &[]).is_ok());
    let error = evaluate(&copy(1_001), &[]).unwrap_err();
    assert!(error.contains("1000 sources"), "{error}");
    let text = "FROM base\nCOPY <<A <<A /x/\none\nA\ntwo\nA\n";
    let steps = evaluate(text, &[]).unwrap().steps;
    let Action::Copy { sources, .. } = &steps[0].action else {
        panic!("no copy");
    };
    let contents: Vec<&str> = sources
        .iter()
        .map(|source| match source {
            CopySource::Document(document) => document.content.as_str(),
            CopySource::Path(path) => path,
        })
        .collect();
    assert_eq!(contents, ["one\n", "two\n"]);
}

#[test]
fn excluded_patterns_are_limited() {
    let exclude = "**/x/".repeat(70);
    let error = evaluate(&format!("FROM base\nCOPY --exclude={exclude} . /\n"), &[]).unwrap_err();
    assert!(error.contains("128 components"), "{error}");
    let error = evaluate(&format!("FROM base\nCOPY {exclude} /\n"), &[]).unwrap_err();
    assert!(error.contains("128 components"), "{error}");
}
