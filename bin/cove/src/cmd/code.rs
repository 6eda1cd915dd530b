//! The code interpreter on the command line: output as it comes, results as text, pictures as files.

use std::io::{Read, Write};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use cove_api::code::{CodeEnd, CodeEvent, CodeOutput, CreateCodeContext, Language, RunCode};
use cove_client::Client;

use crate::args::code::{CodeCommand, CodeRunArgs, LanguageArg};
use crate::output::{self, Table};
use crate::report::CliError;

/// Exit code of code that threw.
const THREW: u8 = 1;
/// Exit code of code that ran out of time, as `timeout` has it.
const TIMED_OUT: u8 = 124;

/// Forms that go into a file, and how that is called.
const FILES: &[(&str, &str)] = &[
    ("image/png", "png"),
    ("image/jpeg", "jpg"),
    ("image/svg+xml", "svg"),
    ("application/pdf", "pdf"),
    ("text/html", "html"),
];

pub async fn run(client: &Client, command: CodeCommand, json: bool) -> Result<u8, CliError> {
    match command {
        CodeCommand::Run(args) => return execute(client, &args, json).await,
        CodeCommand::Ls { sandbox } => list(client, &sandbox, json).await?,
        CodeCommand::New {
            sandbox,
            language,
            workdir,
        } => {
            let request = CreateCodeContext {
                language: wire(language),
                cwd: workdir,
                ..CreateCodeContext::default()
            };
            let context = client.create_code_context(&sandbox, &request).await?;
            match json {
                true => output::json(&context)?,
                false => output::line(&context.id)?,
            }
        }
        CodeCommand::Interrupt { sandbox, context } => {
            client.interrupt_code(&sandbox, &context).await?;
            if json {
                output::done("interrupted", &context, json)?;
            }
        }
        CodeCommand::Rm { sandbox, contexts } => {
            for context in contexts {
                client.remove_code_context(&sandbox, &context).await?;
                output::done("deleted", &context, json)?;
            }
        }
    }
    Ok(0)
}

fn wire(language: LanguageArg) -> Language {
    match language {
        LanguageArg::Python => Language::Python,
        LanguageArg::Javascript => Language::JavaScript,
        LanguageArg::Typescript => Language::TypeScript,
        LanguageArg::Bash => Language::Bash,
    }
}

fn name(language: Language) -> &'static str {
    match language {
        Language::Python => "python",
        Language::JavaScript => "javascript",
        Language::TypeScript => "typescript",
        Language::Bash => "bash",
    }
}

async fn list(client: &Client, sandbox: &str, json: bool) -> Result<(), CliError> {
    let page = client.code_contexts(sandbox).await?;
    if json {
        return output::json(&page.items);
    }
    let mut table = Table::new(&["ID", "LANGUAGE", "DEFAULT", "DIRECTORY", "USER"]);
    for context in page.items {
        table.row([
            context.id,
            name(context.language).to_owned(),
            if context.default { "yes" } else { "" }.to_owned(),
            context.cwd,
            context.user,
        ]);
    }
    table.print()
}

/// The language of a file, by its extension.
fn by_name(file: &Path) -> Option<Language> {
    match file.extension()?.to_str()? {
        "py" => Some(Language::Python),
        "js" | "mjs" | "cjs" => Some(Language::JavaScript),
        "ts" | "mts" => Some(Language::TypeScript),
        "sh" | "bash" => Some(Language::Bash),
        _ => None,
    }
}

fn read(args: &CodeRunArgs) -> Result<String, CliError> {
    match (&args.code, &args.file) {
        (Some(code), _) => Ok(code.clone()),
        (None, Some(path)) if path.as_os_str() != "-" => std::fs::read_to_string(path)
            .map_err(|error| CliError::io(format!("cannot read {}", path.display()), error)),
        (None, _) => {
            let mut code = String::new();
            std::io::stdin()
                .read_to_string(&mut code)
                .map_err(|error| CliError::io("cannot read standard input", error))?;
            Ok(code)
        }
    }
}

async fn execute(client: &Client, args: &CodeRunArgs, json: bool) -> Result<u8, CliError> {
    let language = args
        .language
        .map(wire)
        .or_else(|| args.file.as_deref().and_then(by_name));
    let request = RunCode {
        code: read(args)?,
        language,
        context: args.context.clone(),
        timeout_ms: args.timeout.map(|seconds| seconds.saturating_mul(1000)),
    };
    let mut events = client.run_code(&args.sandbox, &request).await?;
    let mut context: Option<String> = None;
    let (mut shown, mut threw) = (0, false);
    loop {
        let event = tokio::select! {
            event = events.next() => event?,
            interrupt = tokio::signal::ctrl_c() => {
                interrupt.map_err(|error| CliError::io("cannot wait for signals", error))?;
                if let Some(context) = &context {
                    client.interrupt_code(&args.sandbox, context).await?;
                }
                continue;
            }
        };
        let Some(event) = event else {
            return Err(CliError::usage("the output ended before the code"));
        };
        if json {
            output::json_line(&event)?;
        }
        match event {
            CodeEvent::Started { context: started } => context = Some(started.id),
            CodeEvent::Stdout { text } if !json => say(&mut std::io::stdout(), &text)?,
            CodeEvent::Stderr { text } if !json => say(&mut std::io::stderr(), &text)?,
            CodeEvent::Stdout { .. } | CodeEvent::Stderr { .. } => {}
            CodeEvent::Result { result } => {
                shown += 1;
                show(&result, args.save.as_deref(), shown, json)?;
            }
            CodeEvent::Error { error } => {
                threw = true;
                if !json {
                    let text = match error.traceback.is_empty() {
                        true => format!("{}: {}", error.name, error.value),
                        false => error.traceback,
                    };
                    say(&mut std::io::stderr(), &format!("{}\n", text.trim_end()))?;
                }
            }
            CodeEvent::End(end) => return Ok(exit_code(&end, threw)),
            CodeEvent::Failed { error } => {
                return Err(CliError::usage(format!(
                    "the output ended early: {}",
                    error.message
                )));
            }
        }
    }
}

fn exit_code(end: &CodeEnd, threw: bool) -> u8 {
    if end.timed_out {
        eprintln!("cove: the code was interrupted after its timeout");
        return TIMED_OUT;
    }
    if end.truncated {
        eprintln!("cove: the output is too long; a part of it is not shown");
    }
    match end.exit_code {
        Some(code) => u8::try_from(code).unwrap_or(u8::MAX),
        None if threw => THREW,
        None => 0,
    }
}

fn say(out: &mut impl Write, text: &str) -> Result<(), CliError> {
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(output::closed)
}

fn show(
    result: &CodeOutput,
    save: Option<&Path>,
    number: usize,
    json: bool,
) -> Result<(), CliError> {
    if let Some(directory) = save {
        for (form, ending) in FILES {
            let Some(text) = result.data.get(*form).and_then(|found| found.text()) else {
                continue;
            };
            let bytes = match form.starts_with("text/") || *form == "image/svg+xml" {
                true => text.into_bytes(),
                false => BASE64
                    .decode(text)
                    .map_err(|_| CliError::usage("a result cannot be read"))?,
            };
            let path = directory.join(format!("{number}.{ending}"));
            std::fs::create_dir_all(directory)
                .and_then(|()| std::fs::write(&path, bytes))
                .map_err(|error| CliError::io(format!("cannot write {}", path.display()), error))?;
            eprintln!("cove: wrote {}", path.display());
        }
    }
    if json {
        return Ok(());
    }
    if let Some(text) = result.data.get("text/plain").and_then(|found| found.text()) {
        output::line(&text)?;
    }
    Ok(())
}
