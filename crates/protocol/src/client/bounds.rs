//! Cuts what a guest says down to what a host is ready to keep.

use cove_wire::limits::FEATURES_MAX;

use cove_limits::{DOMAIN_NAME_MAX, OUTPUT_TIMES_MAX, REFUSED_NAMES_MAX, SERVICES_MAX};

use crate::message::{FileInfo, Output, Process, ReplyKind, ServiceStatus};

/// Characters kept of any one text in a reply, paths and command lines included.
pub const TEXT_MAX: usize = 4096;
/// Arguments kept of a command line, and their total length.
const ARGUMENTS_MAX: usize = 256;
/// Processes in one listing.
pub const PROCESSES_MAX: usize = 8192;
/// Ports in one listing.
const PORTS_MAX: usize = 4096;
/// Entries in one directory listing.
pub const LISTING_MAX: usize = 100_000;

fn cut(text: &mut String) {
    if text.len() > TEXT_MAX {
        text.truncate(text.floor_char_boundary(TEXT_MAX));
        text.shrink_to_fit();
    }
}

pub(super) fn bound(mut kind: ReplyKind) -> ReplyKind {
    match &mut kind {
        ReplyKind::Error(error) => cut(&mut error.message),
        ReplyKind::Info(info) => {
            cut(&mut info.build);
            cut(&mut info.hostname);
            info.features.truncate(FEATURES_MAX);
            info.features.iter_mut().for_each(cut);
        }
        ReplyKind::Started(process) | ReplyKind::Process(process) => bound_process(process),
        ReplyKind::Processes(list) => list.processes.iter_mut().for_each(bound_process),
        ReplyKind::File(file) => bound_file(file),
        ReplyKind::Listing(listing) => listing.entries.iter_mut().for_each(bound_file),
        ReplyKind::Change(change) => {
            cut(&mut change.path);
            cut(&mut change.from);
        }
        ReplyKind::Ports(list) => {
            list.ports.truncate(PORTS_MAX);
            for port in &mut list.ports {
                cut(&mut port.address);
                cut(&mut port.process);
            }
        }
        ReplyKind::Refusals(refusals) => {
            refusals.names.truncate(REFUSED_NAMES_MAX);
            for refused in &mut refusals.names {
                refused.name = printable_name(&refused.name);
            }
        }
        ReplyKind::Services(list) => {
            list.services.truncate(SERVICES_MAX);
            list.services.iter_mut().for_each(bound_service);
        }
        ReplyKind::Output(output) => bound_times(output),
        ReplyKind::Done(_)
        | ReplyKind::Exit(_)
        | ReplyKind::Data(_)
        | ReplyKind::Metrics(_)
        | ReplyKind::Quiesce(_) => {}
    }
    kind
}

/// Marks lie within the piece and go forwards, whatever the guest says.
fn bound_times(output: &mut Output) {
    let mut from = output.offset;
    let end = from.saturating_add(output.data.len() as u64);
    output.times.truncate(OUTPUT_TIMES_MAX);
    output.times.retain(|time| {
        let fits = (from..end).contains(&time.offset);
        if fits {
            from = time.offset + 1;
        }
        fits
    });
    output.times.shrink_to_fit();
}

/// Names come from programs inside, by way of a guest that may be anybody's.
fn printable_name(name: &str) -> String {
    let shown = name.chars().take(DOMAIN_NAME_MAX);
    shown
        .map(|c| if c.is_ascii_graphic() { c } else { '?' })
        .collect()
}

fn bound_process(process: &mut Process) {
    cut(&mut process.id);
    cut(&mut process.cwd);
    cut(&mut process.user);
    cut(&mut process.mark);
    cut(&mut process.owner);
    cut(&mut process.tag);
    bound_arguments(&mut process.argv);
}

fn bound_arguments(argv: &mut Vec<String>) {
    argv.truncate(ARGUMENTS_MAX);
    let mut left = TEXT_MAX;
    for argument in argv {
        argument.truncate(argument.floor_char_boundary(left.min(argument.len())));
        left -= argument.len();
    }
}

fn bound_service(status: &mut ServiceStatus) {
    cut(&mut status.process);
    cut(&mut status.error);
    if let Some(service) = &mut status.service {
        for text in [
            &mut service.name,
            &mut service.shell,
            &mut service.cwd,
            &mut service.user,
        ] {
            cut(text);
        }
        bound_arguments(&mut service.argv);
        service.env.clear();
    }
}

fn bound_file(file: &mut FileInfo) {
    cut(&mut file.name);
    cut(&mut file.path);
    cut(&mut file.owner);
    cut(&mut file.group);
    cut(&mut file.symlink_target);
}
