//! The user that programs written for Daytona expect in a sandbox from the default image: `daytona`, with a home and
//! the right to become root.

use cove_control::{CommandLine, CommandRequest, GuestAction, Principal, Sandbox};
use cove_dialect::Front;
use cove_protocol::identity::owner;

use crate::exec;
use crate::refusal::Refusal;

pub const USER: &str = "daytona";
/// Images that Cove builds have `useradd` and `sudo`; other images of that name may not.
const SCRIPT: &str = "id -u daytona >/dev/null 2>&1 && exit 0
useradd --create-home --user-group --shell /bin/bash daytona || exit 1
[ -d /etc/sudoers.d ] || exit 0
printf 'daytona ALL=(ALL:ALL) NOPASSWD: ALL\\n' >/etc/sudoers.d/daytona && chmod 0440 /etc/sudoers.d/daytona";
const TIMEOUT_MS: u64 = 30_000;

/// Makes the user where the image does not have it; answers whether it is there.
pub async fn prepare(
    front: &Front,
    caller: &Principal,
    sandbox: &Sandbox,
) -> Result<bool, Refusal> {
    let id = sandbox.id.as_str();
    let access = front.control.guest(caller, id, GuestAction::Exec).await?;
    let argv = ["/bin/sh", "-c", SCRIPT].map(str::to_owned);
    let request = CommandRequest {
        user: Some("root".into()),
        cwd: Some("/".into()),
        timeout_ms: Some(TIMEOUT_MS),
        ..CommandRequest::new(owner::DAYTONA, CommandLine::Argv(argv.to_vec()))
    };
    match exec::run_apart(front, access, request).await {
        Ok(ended) => Ok(ended.exit.code == 0 && !ended.exit.timed_out),
        Err(refusal) if refusal.is_missing_program() => Ok(false),
        Err(refusal) => Err(refusal),
    }
}
