//! The documented table of what the suites leave out for a tier is the one that they go by.

use std::path::Path;

use cove_tests::tiers;

#[test]
fn the_documented_table_of_left_out_tests_is_the_one_in_force() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/isolation.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, table) = text.split_once("| test | why |\n|---|---|\n").unwrap();
    let documented: Vec<&str> = table
        .lines()
        .take_while(|line| line.starts_with('|'))
        .collect();
    let in_force: Vec<String> = tiers::GVISOR
        .iter()
        .map(|(test, why)| format!("| `{test}` | {why} |"))
        .collect();
    assert_eq!(documented, in_force);
}

/// A test that is renamed must not leave its row behind.
#[test]
fn every_test_that_is_left_out_exists() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (name, _) in tiers::GVISOR {
        let parts: Vec<&str> = name.split("::").collect();
        let (file, test) = match parts[..] {
            [module, test] => (format!("conformance/{module}.rs"), test),
            [suite, module, test] => (format!("{suite}/{module}.rs"), test),
            _ => panic!("{name}"),
        };
        let text = std::fs::read_to_string(tests.join(file)).unwrap();
        assert!(text.contains(test), "{name}");
    }
}
