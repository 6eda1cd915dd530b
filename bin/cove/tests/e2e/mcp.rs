//! The official MCP clients against a real server, over HTTP and through `cove mcp`.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::harness::{Cove, program};

#[test]
fn the_official_mcp_clients_work_over_both_transports() {
    let cove = Cove::start_with(&["--rate-per-second", "0"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/test-mcp");
    let output = Command::new(script)
        .arg("busybox")
        .env("COVE_DATA_DIR", cove.data_dir())
        .env("COVE_PROGRAM", program())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A section of `docs/mcp.md` and the configuration that it has for one client.
struct Documented {
    client: String,
    language: String,
    text: String,
}

fn documented() -> Vec<Documented> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/mcp.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (mut found, mut client) = (Vec::new(), "");
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(title) = line.strip_prefix("## ") {
            client = title;
        } else if let Some(language) = line.strip_prefix("```").filter(|word| !word.is_empty()) {
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            found.push(Documented {
                client: client.to_owned(),
                language: language.to_owned(),
                text: block.join("\n"),
            });
        }
    }
    found
}

fn help(args: &[&str]) -> String {
    let output = Command::new(program())
        .args(args)
        .arg("--help")
        .output()
        .unwrap();
    assert!(output.status.success(), "cove {args:?}: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    // Long lines are wrapped anywhere.
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// One server of a configuration: a command that the program has, or an address with the key.
fn check_server(client: &str, server: &Value) {
    let text = |name: &str| server[name].as_str();
    match (text("command"), text("url")) {
        (Some(command), None) => {
            assert_eq!(command, "cove", "{client}");
            let args: Vec<&str> = server["args"]
                .as_array()
                .unwrap()
                .iter()
                .map(|arg| arg.as_str().unwrap())
                .collect();
            let help = help(&args);
            assert!(help.contains("MCP"), "{client}: {help}");
            for name in server["env"].as_object().unwrap().keys() {
                assert!(help.contains(&format!("[env: {name}")), "{client}: {name}");
            }
        }
        (None, Some(url)) => {
            assert!(url.starts_with("http") && url.ends_with("/mcp"), "{client}");
            let header = server["headers"]["Authorization"].as_str();
            let with_key = header.is_some_and(|header| header.starts_with("Bearer "));
            let from_variable = text("bearer_token_env_var") == Some("COVE_API_KEY");
            assert!(with_key || from_variable, "{client}: {server}");
        }
        _ => panic!("{client}: neither a command nor an address: {server}"),
    }
}

#[test]
fn documented_configurations_of_clients_are_valid_and_name_what_is_there() {
    // Where each client looks for its servers, by its own documentation.
    let places = [
        ("Claude Desktop", "json", "mcpServers"),
        ("Cursor", "json", "mcpServers"),
        ("VS Code", "json", "servers"),
        ("Codex", "toml", "mcp_servers"),
    ];
    let documented = documented();
    for (client, language, place) in places {
        let blocks = documented.iter().filter(|one| one.client == client);
        let blocks: Vec<_> = blocks.filter(|one| one.language == language).collect();
        assert!(!blocks.is_empty(), "{client} has no configuration");
        for block in blocks {
            let value: Value = match language {
                "json" => serde_json::from_str(&block.text).unwrap(),
                _ => serde_json::to_value(block.text.parse::<toml::Table>().unwrap()).unwrap(),
            };
            let known = [place, "inputs"];
            let others = value.as_object().unwrap().keys();
            let others: Vec<_> = others
                .filter(|key| !known.contains(&key.as_str()))
                .collect();
            assert!(others.is_empty(), "{client}: {others:?}");
            let servers = value[place].as_object().unwrap();
            assert_eq!(servers.keys().collect::<Vec<_>>(), ["cove"], "{client}");
            check_server(client, &servers["cove"]);
            // What a client asks its user for is used, and nothing else is.
            for input in value["inputs"].as_array().into_iter().flatten() {
                let used = format!("${{input:{}}}", input["id"].as_str().unwrap());
                assert!(block.text.contains(&used), "{client}: {used}");
            }
            let asked = value["inputs"].as_array().map_or(0, Vec::len);
            assert_eq!(block.text.matches("${input:").count(), asked, "{client}");
        }
    }
    let blocks = documented.iter().filter(|one| one.client == "Claude Code");
    let (mut addresses, mut commands) = (0, 0);
    for block in blocks {
        let words: Vec<&str> = block.text.split_whitespace().collect();
        assert_eq!(words[..3], ["claude", "mcp", "add"]);
        match block.text.split_once(" -- cove ") {
            Some((before, args)) => {
                let help = help(&args.split_whitespace().collect::<Vec<_>>());
                let names = before.split("--env ").skip(1);
                for name in names.filter_map(|word| word.split('=').next()) {
                    assert!(help.contains(&format!("[env: {name}")), "{name}");
                }
                commands += 1;
            }
            None => {
                assert!(
                    block
                        .text
                        .contains("/mcp\" --header \"Authorization: Bearer ")
                );
                addresses += 1;
            }
        }
    }
    assert_eq!((addresses, commands), (1, 1));
}
