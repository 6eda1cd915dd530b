//! One call of a tool: who makes it, and how its caller hears of progress.

use std::time::Duration;

use cove_client::Client;
use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::RequestContext;
use tokio::time::Instant;

/// Between two notices of progress.
pub const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Characters of the last line of output in a notice of progress.
const MESSAGE_MAX: usize = 200;

pub struct Call {
    pub client: Client,
    context: RequestContext<RoleServer>,
    cancellable: bool,
    token: Option<ProgressToken>,
    begun: Instant,
}

impl Call {
    pub fn new(client: Client, context: RequestContext<RoleServer>, cancellable: bool) -> Self {
        let token = context.meta.get_progress_token();
        Self {
            client,
            context,
            cancellable,
            token,
            begun: Instant::now(),
        }
    }

    /// Resolves when the caller no longer wants this; never over HTTP.
    pub async fn cancelled(&self) {
        if !self.cancellable {
            std::future::pending::<()>().await;
        }
        self.context.ct.cancelled().await;
    }

    /// Tells a caller who asked for it that work goes on. Progress is counted in seconds.
    pub async fn progress(&self, message: &str) {
        let Some(token) = &self.token else { return };
        let message: String = message.chars().take(MESSAGE_MAX).collect();
        let elapsed = self.begun.elapsed().as_secs_f64();
        let mut notice = ProgressNotificationParam::new(token.clone(), elapsed);
        if !message.is_empty() {
            notice = notice.with_message(message);
        }
        // A caller who is gone hears nothing; the work does not depend on it.
        self.context.peer.notify_progress(notice).await.ok();
    }
}
