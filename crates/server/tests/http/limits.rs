//! docs/limits.md, the OpenAPI document and the SDK say what the server does.

#[path = "limits/request.rs"]
mod request;

use cove_control::budget::MEMORY;
use cove_control::{AUDIT_WAITING, METADATA_VISITS, RELAYED, Sharing};
use cove_dialect::Kind;
use cove_server::ServerConfig;

const MIB: usize = 1024 * 1024;

/// The cells of a row: total, most for one, always for one.
fn row(name: &str) -> [String; 3] {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/limits.md");
    let page = std::fs::read_to_string(path).expect("the page is there");
    let row = page
        .lines()
        .find(|line| line.starts_with(&format!("| {name} |")));
    let row = row.unwrap_or_else(|| panic!("there is no row '{name}'"));
    let cells: Vec<String> = row
        .split('|')
        .map(|cell| cell.trim().replace(',', ""))
        .collect();
    [cells[2].clone(), cells[3].clone(), cells[4].clone()]
}

fn shown(total: usize, sharing: Sharing) -> [String; 3] {
    [total, sharing.most(), sharing.promised].map(|number| number.to_string())
}

#[test]
fn the_page_of_limits_has_the_numbers_of_the_code() {
    for (name, kind) in [
        ("Followed egress logs", Kind::Egress),
        ("Requests under way", Kind::Request),
        ("Live streams", Kind::Live),
        ("Commands under way", Kind::Run),
        ("Uploads and downloads", Kind::Transfer),
        ("Visits to previews", Kind::Visit),
        ("Connections to ports", Kind::Port),
    ] {
        assert_eq!(
            row(name),
            shown(kind.sharing().total, kind.sharing()),
            "{name}"
        );
    }
    let memory = [MEMORY.total, MEMORY.most(), MEMORY.promised];
    let memory = memory.map(|bytes| format!("{} MiB", bytes / MIB));
    assert_eq!(row("Memory for requests and answers"), memory);
    for (name, sharing) in [
        ("SSH clients", cove_ssh::CLIENTS),
        ("SSH channels", cove_ssh::CHANNELS),
    ] {
        assert_eq!(row(name), shown(sharing.total, sharing), "{name}");
    }
    for (name, sharing) in [
        ("Connections into sandboxes of one node", RELAYED),
        ("Audit records that wait for the database", AUDIT_WAITING),
        ("Requests to metadata endpoints", METADATA_VISITS),
    ] {
        assert_eq!(row(name), shown(sharing.total, sharing), "{name}");
    }
    // Their share has an upper bound besides.
    let builds = cove_control::BUILDS;
    let most = builds.most().min(cove_limits::BUILDS_RUNNING_MAX);
    let numbers = [builds.total, most, builds.promised];
    assert_eq!(row("Builds of templates"), numbers.map(|n| n.to_string()));
    let (total, always) = (
        cove_control::SNAPSHOTS_OF_HOST,
        cove_control::SNAPSHOTS_ALWAYS,
    );
    let most = (total / 2).min(cove_limits::SNAPSHOTS_MAX);
    let numbers = [total, most, always].map(|n| n.to_string());
    assert_eq!(row("Snapshots of one host"), numbers);
    let archives = [
        cove_limits::BUILD_UPLOADS_ALL_MAX,
        cove_limits::BUILD_UPLOADS_MAX,
        cove_limits::BUILD_UPLOADS_MAX / 4,
    ];
    let archives = archives.map(|bytes| (bytes / MIB).to_string());
    assert_eq!(row("Archives for later builds, in MiB"), archives);
    let approvals = cove_limits::APPROVALS_MAX.to_string();
    let row_of = row("Approvals of one host");
    assert_eq!(row_of, ["-".to_owned(), approvals.clone(), approvals]);
    let connections = ServerConfig::default().connections_max;
    for (name, sharing) in [
        (
            "Connections, by address",
            cove_server::connection_sharing(connections),
        ),
        ("SSH clients not logged in, by address", cove_ssh::STRANGERS),
    ] {
        assert_eq!(row(name), shown(sharing.hard, sharing), "{name}");
    }
    for (name, most) in [
        ("Visits to one sandbox", cove_server::VISITS_MAX),
        ("SSH clients of one sandbox", cove_ssh::SANDBOX_CLIENTS_MAX),
    ] {
        assert_eq!(
            row(name),
            ["-".to_owned(), most.to_string(), most.to_string()]
        );
    }
}
