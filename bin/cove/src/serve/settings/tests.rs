use std::time::Duration;

use super::*;

#[test]
fn every_field_is_in_the_table_and_reads_what_it_shows() {
    let fields = serde_json::to_value(Settings::default()).unwrap();
    let fields: Vec<_> = fields.as_object().unwrap().keys().cloned().collect();
    let mut keys: Vec<_> = SETTINGS
        .iter()
        .map(|setting| setting.key.to_owned())
        .collect();
    keys.sort();
    let mut sorted = fields.clone();
    sorted.sort();
    assert_eq!(keys, sorted);
    for setting in SETTINGS {
        let mut settings = Settings::default();
        (setting.set)(&mut settings, &setting.default_text())
            .unwrap_or_else(|problem| panic!("{}: {problem}", setting.key));
        assert_eq!(settings, Settings::default(), "{}", setting.key);
    }
}

#[test]
fn the_printed_file_sets_the_defaults_once_its_lines_are_used() {
    let printed = crate::serve::config_file();
    let mut settings = Settings::default();
    settings.read_toml(&printed, "file").unwrap();
    assert_eq!(settings, Settings::default());
    let used: Vec<_> = printed
        .lines()
        .filter_map(|line| line.strip_prefix('#'))
        .filter(|line| !line.starts_with(' '))
        .collect();
    assert_eq!(used.len(), SETTINGS.len());
    settings.read_toml(&used.join("\n"), "file").unwrap();
    assert_eq!(settings, Settings::default());
}

#[test]
fn later_sources_win_and_name_themselves_when_wrong() {
    let mut settings = Settings::default();
    settings
        .read_toml("listen = \"127.0.0.1:1\"\nwarm = 9\nidle_cpu = 0.5", "file")
        .unwrap();
    settings
        .read_environment(|name| (name == "COVE_LISTEN").then(|| "127.0.0.1:2".into()))
        .unwrap();
    assert_eq!(settings.listen.port(), 2);
    assert_eq!(settings.warm, 9);
    for (text, said) in [
        ("listn = \"x\"", "there is no setting 'listn'"),
        ("warm = \"many\"", "warm must be a whole number"),
        ("warm = [1]", "warm must be text, a number or true or false"),
        (
            "plain_registries = [1]",
            "plain_registries must be a list of names",
        ),
        (
            "plain_registries = [\"a,b\"]",
            "plain_registries must be a list of names",
        ),
        (
            "plain_registries = \"a,,b\"",
            "plain_registries must be names with commas",
        ),
        ("warm", "is not TOML"),
    ] {
        let error = Settings::default()
            .read_toml(text, "file")
            .unwrap_err()
            .to_string();
        assert!(error.contains(said) && error.contains("file"), "{error}");
    }
}

#[test]
fn registries_reach_those_who_act_on_them() {
    let mut settings = Settings::default();
    let default = settings.engine().default_registry;
    assert_eq!(default.as_deref(), Some("docker.io"));
    let text = "default_registry = \"r.example\"\npull_on_create = false\n\
                plain_registries = [\"a.example\", \"b.example:5000\"]";
    settings.read_toml(text, "file").unwrap();
    settings.check().unwrap();
    let engine = settings.engine();
    assert_eq!(engine.default_registry.as_deref(), Some("r.example"));
    assert!(!settings.control().pull_on_create);
    assert_eq!(engine.plain_registries, ["a.example", "b.example:5000"]);
    settings
        .read_environment(|name| {
            (name == "COVE_PLAIN_REGISTRIES").then(|| "c.example, d.example".into())
        })
        .unwrap();
    assert_eq!(settings.plain_registries, ["c.example", "d.example"]);
    for (key, value) in [
        ("default_registry", "https://docker.io"),
        ("plain_registries", "a.example/path"),
        ("trusted_keys", "0123"),
        ("network_range", "198.18.0.0/16"),
        ("tenant_private_ranges", "10.1.0.1/16"),
        ("import_dirs", "srv/images"),
        ("network_range", "198.19.0.0/15"),
        ("network_resolvers", "resolver.example"),
        ("criu", "/there/is/none"),
        ("runsc", "/there/is/none"),
        ("vm_programs", "/there/is/none"),
        ("isolation", "qemu"),
        ("isolation_of", "gvisor"),
        ("isolation_of", "org_x=gvisor"),
    ] {
        let mut settings = Settings::default();
        settings.set(key, value, "here").unwrap();
        let error = settings.check().unwrap_err().to_string();
        assert!(error.contains(key) && error.contains(value), "{error}");
    }
}

#[test]
fn settings_of_the_network_and_of_memory_reach_the_engine() {
    let mut settings = Settings::default();
    settings.check().unwrap();
    let engine = settings.engine();
    assert_eq!(engine.network_range, Addresses::default());
    assert_eq!(engine.network_presets, Some(PRESETS_FILE.into()));
    assert!(engine.network_resolvers.is_empty() && settings.container().criu.is_none());
    let text = "network_range = \"10.200.0.0/15\"\n\
                network_presets = \"/srv/presets\"\n\
                network_resolvers = [\"192.0.2.1\", \"[2001:db8::1]:5353\"]\n\
                criu = \"/proc/self/exe\"\n\
                runsc = \"/proc/self/exe\"\n\
                vm_programs = \"/proc\"";
    settings.read_toml(text, "file").unwrap();
    settings.check().unwrap();
    let engine = settings.engine();
    assert_eq!(engine.network_range.to_string(), "10.200.0.0/15");
    assert_eq!(engine.network_presets, Some("/srv/presets".into()));
    let asked: Vec<_> = engine
        .network_resolvers
        .iter()
        .map(SocketAddr::to_string)
        .collect();
    assert_eq!(asked, ["192.0.2.1:53", "[2001:db8::1]:5353"]);
    assert_eq!(settings.container().criu, Some("/proc/self/exe".into()));
    settings
        .set("isolation", "auto,vm,gvisor,container", "here")
        .unwrap();
    let org = cove_model::OrgId::random();
    let rule = format!("{org}=gvisor");
    settings.set("isolation_of", &rule, "here").unwrap();
    settings.check().unwrap();
    let policy = settings.control().isolation;
    assert_eq!(policy.all.default, "auto");
    assert!(policy.all.allows("vm"));
    assert_eq!(settings.vm().programs, Some("/proc".into()));
    assert_eq!(policy.rule(&org).allowed, ["gvisor"]);
    assert_eq!(settings.gvisor().runsc, Some("/proc/self/exe".into()));
    settings.set("network_presets", "", "here").unwrap();
    assert_eq!(settings.engine().network_presets, None);
}

#[test]
fn the_documented_table_is_this_one() {
    let documented = include_str!("../../../../../docs/configuration.md");
    for setting in SETTINGS {
        let row = format!(
            "| `{}` | `{}` | `--{}` | {} | {} |",
            setting.key,
            setting.variable(),
            setting.flag(),
            match setting.default_text().as_str() {
                "" => String::new(),
                default => format!("`{default}`"),
            },
            setting.help
        );
        assert!(
            documented.contains(&row),
            "docs/configuration.md lacks the row\n{row}"
        );
    }
    let rows = documented
        .lines()
        .filter(|line| line.starts_with("| `") && line.matches("| `").count() >= 3)
        .count();
    assert_eq!(rows, SETTINGS.len());
}

#[test]
fn how_long_things_are_kept_is_told_to_the_control_side_and_bounded() {
    let mut settings = Settings::default();
    for (key, value) in [
        ("snapshot_grace_s", "7"),
        ("events_kept_days", "2"),
        ("audit_kept_days", "3"),
        ("lease_renew_s", "4"),
        ("lease_delete_after_s", "5"),
    ] {
        settings.set(key, value, "a test").unwrap();
    }
    settings.check().unwrap();
    let control = settings.control();
    let days = |days: u64| Duration::from_secs(days * 86_400);
    assert_eq!(control.snapshot_grace, Duration::from_secs(7));
    assert_eq!(
        (control.events_kept, control.audit_kept),
        (days(2), days(3))
    );
    let lease = control.lease_times;
    assert_eq!((lease.renew_within_s, lease.delete_after_s), (4, 5));
    for (key, value) in [
        ("snapshot_grace_s", "0"),
        ("events_kept_days", "0"),
        ("audit_kept_days", "18446744073709551615"),
        ("lease_renew_s", "0"),
        ("lease_delete_after_s", "18446744073709551615"),
    ] {
        let mut settings = Settings::default();
        settings.set(key, value, "a test").unwrap();
        let refused = settings.check().unwrap_err().to_string();
        assert!(refused.contains(key), "{refused}");
    }
}

#[test]
fn the_documented_file_is_read() {
    let documented = include_str!("../../../../../docs/configuration.md");
    let (_, rest) = documented.split_once("```toml\n").expect("there is one");
    let (file, _) = rest.split_once("```").expect("it ends");
    let mut settings = Settings::default();
    settings.read_toml(file, "docs/configuration.md").unwrap();
    settings.check().unwrap();
    assert_ne!(settings, Settings::default());
}
