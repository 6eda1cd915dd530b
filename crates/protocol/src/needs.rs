//! What a guest must be able to do for a request to mean what it says.
//!
//! Every field of every request is looked at here by name, so that a new one does not compile before somebody has
//! decided whether it restricts something. What does gets a [`Feature`] of its own; what only informs is ignored
//! by guests that do not know it.

use cove_wire::{Feature, Needs, Side};

use crate::message::{
    ArchiveIn, ArchiveOut, Environment, ListDir, MakeDir, Move, Open, PathRequest, ReadFile,
    Remove, Request, Service, ServiceRef, SetAttributes, Start, StartService, Watch, WriteFile,
};
use crate::{OLDEST_SUPPORTED, VERSION};

/// Act with the rights of a user that is not root.
pub const ACT_AS_USER: Feature = Feature::new("act-as-user");
/// End a process that runs for too long.
pub const TIMEOUT: Feature = Feature::new("timeout");
/// End a process whose caller goes away.
pub const KILL_ON_DISCONNECT: Feature = Feature::new("kill-on-disconnect");
/// Keep no more output than asked for.
pub const OUTPUT_LIMIT: Feature = Feature::new("output-limit");
/// Give files the owner and mode that were asked for, from their first moment.
pub const FILE_MODE: Feature = Feature::new("file-mode");
/// Refuse links that somebody else than root may have placed.
pub const ROOT_LINKS_ONLY: Feature = Feature::new("root-links-only");
/// Keep services running, also over stops of the sandbox.
pub const SERVICES: Feature = Feature::new("services");

/// What guests of version 1 can do, although they do not say so.
pub const BASELINE: &[Feature] = &[
    ACT_AS_USER,
    TIMEOUT,
    KILL_ON_DISCONNECT,
    OUTPUT_LIMIT,
    FILE_MODE,
];
/// What the guest of this build can do.
pub const FEATURES: &[Feature] = &[
    ACT_AS_USER,
    TIMEOUT,
    KILL_ON_DISCONNECT,
    OUTPUT_LIMIT,
    FILE_MODE,
    ROOT_LINKS_ONLY,
    SERVICES,
];

pub const SIDE: Side = Side {
    wire: "guest",
    version: VERSION,
    oldest: OLDEST_SUPPORTED,
    features: FEATURES,
};

impl Open {
    /// The first frame of a call. It has the form of version 1 where every guest understands all that it restricts.
    /// Otherwise it has that of version 2, which guests refuse that would not look at `needs`.
    pub fn new(request: Request) -> Self {
        Self::needing(request.needs(), request)
    }

    pub(crate) fn needing(needs: Needs, request: Request) -> Self {
        Self {
            version: match needs.are_among(BASELINE) {
                true => OLDEST_SUPPORTED,
                false => VERSION,
            },
            needs: needs.names(),
            request: Some(request),
        }
    }
}

impl Request {
    pub fn needs(&self) -> Needs {
        let mut needs = Needs::default();
        let user = match self {
            Self::Start(start) => return start.needs(),
            Self::ReadFile(ReadFile {
                user,
                path: _,
                root_links_only,
                offset: _,
                length: _,
            }) => {
                needs.add_if(*root_links_only, ROOT_LINKS_ONLY);
                user
            }
            Self::WriteFile(WriteFile {
                user,
                mode,
                owner,
                root_links_only,
                path: _,
                parents: _,
                at: _,
                append: _,
                sync: _,
            }) => {
                needs
                    .add_if(mode.is_some() || !owner.is_empty(), FILE_MODE)
                    .add_if(*root_links_only, ROOT_LINKS_ONLY);
                user
            }
            Self::Stat(PathRequest {
                user,
                path: _,
                follow: _,
            }) => user,
            // The host counts entries itself.
            Self::List(ListDir {
                user,
                path: _,
                depth: _,
                limit: _,
            }) => user,
            Self::MakeDir(MakeDir {
                user,
                mode,
                path: _,
                parents: _,
            }) => {
                needs.add_if(mode.is_some(), FILE_MODE);
                user
            }
            Self::Move(Move {
                user,
                from: _,
                to: _,
                replace: _,
            }) => user,
            Self::Remove(Remove {
                user,
                path: _,
                recursive: _,
            }) => user,
            Self::SetAttributes(SetAttributes {
                user,
                mode,
                owner,
                path: _,
            }) => {
                needs.add_if(mode.is_some() || !owner.is_empty(), FILE_MODE);
                user
            }
            Self::ArchiveOut(ArchiveOut { user, path: _ }) => user,
            Self::ArchiveIn(ArchiveIn {
                user,
                path: _,
                keep_owner: _,
            }) => user,
            Self::Watch(Watch {
                user,
                path: _,
                recursive: _,
            }) => user,
            // A guest without services refuses all of them by that name.
            Self::StartService(StartService {
                service,
                id: _,
                environment,
            }) => {
                let own = service.as_ref().is_some_and(Service::acts_as_user);
                let default = environment.as_ref().is_some_and(Environment::acts_as_user);
                needs.add(SERVICES).add_if(own || default, ACT_AS_USER);
                return needs;
            }
            Self::BeginServices(environment) => {
                needs
                    .add(SERVICES)
                    .add_if(environment.acts_as_user(), ACT_AS_USER);
                return needs;
            }
            Self::Services(_) | Self::RemoveService(ServiceRef { name: _ }) => {
                needs.add(SERVICES);
                return needs;
            }
            // These ask and tell; a guest that does not know one of them answers so.
            Self::Info(_)
            | Self::Output(_)
            | Self::Stdin(_)
            | Self::Signal(_)
            | Self::Resize(_)
            | Self::Processes(_)
            | Self::Process(_)
            | Self::Ports(_)
            | Self::Metrics(_)
            | Self::ConnectPort(_)
            | Self::Shutdown(_)
            | Self::Quiesce(_)
            | Self::Refresh(_)
            | Self::Flush(_)
            | Self::TakeRefusals(_)
            | Self::Renew(_) => return needs,
        };
        needs.add_if(!user.is_empty(), ACT_AS_USER);
        needs
    }
}

impl Service {
    fn acts_as_user(&self) -> bool {
        let Self {
            user,
            name: _,
            argv: _,
            shell: _,
            cwd: _,
            env: _,
            restart: _,
        } = self;
        !user.is_empty()
    }
}

impl Environment {
    fn acts_as_user(&self) -> bool {
        let Self {
            user,
            env: _,
            cwd: _,
        } = self;
        !user.is_empty()
    }
}

impl Start {
    fn needs(&self) -> Needs {
        let Self {
            user,
            timeout_ms,
            ring_bytes,
            kill_on_disconnect,
            id: _,
            argv: _,
            shell: _,
            cwd: _,
            env: _,
            pty: _,
            stdin_open: _,
            input: _,
            follow: _,
            mark: _,
            make_cwd: _,
            kind: _,
            owner: _,
            tag: _,
            // Asks for a report.
            report_refusals: _,
        } = self;
        let mut needs = Needs::default();
        needs
            .add_if(!user.is_empty(), ACT_AS_USER)
            .add_if(*timeout_ms > 0, TIMEOUT)
            .add_if(*ring_bytes > 0, OUTPUT_LIMIT)
            .add_if(*kill_on_disconnect, KILL_ON_DISCONNECT);
        needs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_every_guest_can_do_is_asked_in_the_oldest_form() {
        let start = Start {
            user: "agent".into(),
            timeout_ms: 5,
            ..Start::default()
        };
        let open = Open::new(Request::Start(start));
        assert_eq!(open.version, OLDEST_SUPPORTED);
        assert_eq!(open.needs, ["act-as-user", "timeout"]);
    }

    #[test]
    fn what_only_newer_guests_can_do_is_asked_in_a_form_that_older_ones_refuse() {
        let mut needs = Needs::default();
        needs.add(Feature::new("made-up"));
        let open = Open::needing(needs, Request::Start(Start::default()));
        assert!(open.version > OLDEST_SUPPORTED);
    }
}
