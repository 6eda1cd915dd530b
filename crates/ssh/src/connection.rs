//! One client: its login, its channels, and what it may ask for.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use cove_control::{CommandLine, CommandRequest, GuestAction, Origin, Portion, SshEntry, SshLogin};
use cove_model::SandboxId;
use cove_protocol::identity::owner;
use cove_protocol::message::ProcessKind;
use russh::keys::HashAlg;
use russh::server::{
    Auth, ChannelOpenHandle, Handler, Msg, PublicKeyOffer, Response, Session as Ssh,
    VerifiedPublicKey,
};
use russh::{Channel, ChannelId, ChannelOpenFailure, ChannelWriteHalf, Pty, Sig};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::Shared;
use crate::connection_limits::{ConnectionPermit, Group};
use crate::forward::{Forward, port_inside};
use crate::inbox::{Inlet, Outlet, Store};
use crate::process::{Order, Session};
use crate::signals;

/// Channels of one connection at once, and over its whole life: russh remembers each a little.
pub const CHANNELS_MAX: usize = 64;
const CHANNELS_EVER_MAX: usize = 50_000;
/// Variables a client may set for one command, and the bytes of each.
const VARIABLES_MAX: usize = 64;
const VARIABLE_BYTES_MAX: usize = 4096;
/// Resizes and signals waiting for one command; beyond that they are dropped.
const ORDERS_MAX: usize = 64;
/// Columns and rows of a terminal.
const SIZE_MAX: u32 = cove_limits::TERMINAL_SIDE_MAX;
const TERM_MAX: usize = 64;
const LOGIN_SHELL: &str = r#"exec "${SHELL:-/bin/sh}" -l"#;
/// The guest's own program, which is the SFTP server too.
const SFTP_SERVER: [&str; 2] = ["/.cove/bin/guest", "sftp"];

/// A channel from its opening on.
struct Open {
    inlet: Option<Inlet>,
    orders: Option<mpsc::Sender<Order>>,
    cancel: CancellationToken,
    /// Until its command is started.
    prepared: Option<Prepared>,
    /// Among the channels of the organisation.
    _place: ConnectionPermit,
}

struct Prepared {
    write: ChannelWriteHalf<Msg>,
    outlet: Outlet,
    terminal: Option<(u16, u16)>,
    env: BTreeMap<String, String>,
}

type Channels = Arc<Mutex<HashMap<ChannelId, Open>>>;

pub struct Connection {
    shared: Arc<Shared>,
    peer: SocketAddr,
    stranger: Option<Portion<IpAddr>>,
    login: Option<SshLogin>,
    /// Given back with the connection.
    places: Vec<ConnectionPermit>,
    store: Store,
    channels: Channels,
    opened: usize,
    /// Ends the connection and everything on it.
    cut: CancellationToken,
    /// Told once somebody logged in.
    entered: CancellationToken,
}

fn lock(channels: &Channels) -> MutexGuard<'_, HashMap<ChannelId, Open>> {
    channels.lock()
}

fn size(columns: u32, rows: u32) -> (u16, u16) {
    let one = |number: u32, usual: u16| match number {
        0 => usual,
        number => u16::try_from(number.min(SIZE_MAX)).unwrap_or(usual),
    };
    (one(columns, 80), one(rows, 24))
}

impl Connection {
    pub fn new(
        shared: Arc<Shared>,
        peer: SocketAddr,
        stranger: Portion<IpAddr>,
        cut: CancellationToken,
        entered: CancellationToken,
        store: Store,
    ) -> Self {
        Self {
            shared,
            peer,
            stranger: Some(stranger),
            login: None,
            places: Vec::new(),
            store,
            channels: Channels::default(),
            opened: 0,
            cut,
            entered,
        }
    }

    fn origin(&self) -> Origin {
        Origin {
            source: Some(self.peer.ip().to_string()),
            request_id: None,
        }
    }

    fn barred(&self) -> bool {
        self.shared.failures.is_barred(self.peer.ip())
    }

    /// Lets somebody in, or counts the failure.
    fn enter(&mut self, entry: Result<SshEntry, cove_control::ControlError>) -> Auth {
        let (login, admission) = match entry {
            Ok(entry) => entry,
            Err(error) => {
                tracing::debug!(peer = %self.peer, %error, "an SSH login was refused");
                self.shared.failures.count(self.peer.ip());
                return Auth::reject();
            }
        };
        let groups = [
            Group::Organisation(login.principal.org.clone()),
            Group::Sandbox(login.sandbox.clone()),
        ];
        let places = &self.shared.places;
        let taken: Option<Vec<ConnectionPermit>> =
            groups.into_iter().map(|of| places.take(of)).collect();
        let Some(taken) = taken else {
            tracing::warn!(sandbox = %login.sandbox, "a sandbox or its organisation has too many SSH clients");
            return Auth::reject();
        };
        tracing::info!(sandbox = %login.sandbox, peer = %self.peer, "SSH login");
        self.places = taken;
        let budget = self.shared.control.budget();
        self.store.paid_by(budget.account(&login.principal));
        let (cut, sandbox) = (self.cut.clone(), login.sandbox.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = cut.cancelled() => {}
                () = admission.ended() => {
                    tracing::info!(%sandbox, "SSH session closed: its key or token is not valid any more");
                    cut.cancel();
                }
            }
        });
        self.login = Some(login);
        Auth::Accept
    }

    async fn by_token(&mut self, user: &str, token: &str) -> Auth {
        if self.barred() {
            return Auth::reject();
        }
        let control = &self.shared.control;
        let login = control
            .ssh_login_by_token(user, token.trim(), self.origin())
            .await;
        self.enter(login)
    }

    /// Room for another channel; `None` when there are too many.
    fn open(&mut self, id: ChannelId) -> Option<(CancellationToken, Outlet)> {
        let mut channels = lock(&self.channels);
        if channels.len() >= CHANNELS_MAX || self.opened >= CHANNELS_EVER_MAX {
            return None;
        }
        let org = self.login.as_ref()?.principal.org.clone();
        let place = self.shared.places.take(Group::Channels(org))?;
        self.opened += 1;
        let cancel = self.cut.child_token();
        let (inlet, outlet) = self.store.channel();
        channels.insert(
            id,
            Open {
                inlet: Some(inlet),
                orders: None,
                cancel: cancel.clone(),
                prepared: None,
                _place: place,
            },
        );
        Some((cancel, outlet))
    }

    /// Starts what was asked for on a channel that has nothing running yet.
    fn begin(
        &mut self,
        id: ChannelId,
        session: &mut Ssh,
        command: CommandLine,
        action: GuestAction,
    ) -> Result<(), russh::Error> {
        let Some(login) = self.login.clone() else {
            return session.channel_failure(id);
        };
        let (orders, taken) = mpsc::channel(ORDERS_MAX);
        let (prepared, cancel) = {
            let mut channels = lock(&self.channels);
            let Some(open) = channels.get_mut(&id) else {
                return session.channel_failure(id);
            };
            let Some(prepared) = open.prepared.take() else {
                return session.channel_failure(id);
            };
            open.orders = Some(orders);
            (prepared, open.cancel.clone())
        };
        let mut request = CommandRequest::new(owner::SSH, command);
        request.user = login.user.clone();
        request.env = prepared.env;
        request.pty = prepared.terminal;
        request.stdin_open = request.pty.is_none();
        // A shell, not a command that was given a terminal.
        if request.pty.is_some() && action == GuestAction::ProcessStart {
            request.kind = ProcessKind::Terminal;
        }
        request.kill_on_disconnect = true;
        let job = Session {
            control: self.shared.control.clone(),
            login,
            handle: session.handle(),
            write: prepared.write,
            inbox: prepared.outlet,
            orders: taken,
            cancel,
            action,
        };
        let channels = Arc::clone(&self.channels);
        session.channel_success(id)?;
        tokio::spawn(async move {
            job.run(request).await;
            lock(&channels).remove(&id);
        });
        Ok(())
    }

    fn order(&self, id: ChannelId, order: Order) {
        let channels = lock(&self.channels);
        if let Some(orders) = channels.get(&id).and_then(|open| open.orders.as_ref()) {
            // A client that asks faster than the command takes it gets the later ones ignored.
            orders.try_send(order).ok();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.cut.cancel();
    }
}

impl Handler for Connection {
    type Error = russh::Error;

    /// A token in the place of the user name, as `ssh TOKEN@HOST`. Every client begins with this question, so a user
    /// name that is no token is no failure.
    async fn auth_none(&mut self, user: &str) -> Result<Auth, Self::Error> {
        Ok(match user.split_once('.') {
            Some((sandbox, _)) if SandboxId::matches(sandbox) => self.by_token(sandbox, user).await,
            _ => Auth::reject(),
        })
    }

    async fn auth_password(&mut self, user: &str, password: &str) -> Result<Auth, Self::Error> {
        Ok(self.by_token(user, password).await)
    }

    async fn auth_keyboard_interactive<'a>(
        &'a mut self,
        user: &str,
        _submethods: &str,
        response: Option<Response<'a>>,
    ) -> Result<Auth, Self::Error> {
        let Some(mut response) = response else {
            return Ok(Auth::Partial {
                name: "".into(),
                instructions: "".into(),
                prompts: vec![("Token: ".into(), false)].into(),
            });
        };
        let answer = response.next().unwrap_or_default();
        let Ok(token) = std::str::from_utf8(&answer) else {
            return Ok(Auth::reject());
        };
        Ok(self.by_token(user, token).await)
    }

    async fn auth_publickey_offered(
        &mut self,
        _user: &str,
        offer: PublicKeyOffer<'_>,
    ) -> Result<Auth, Self::Error> {
        if self.barred() {
            return Ok(Auth::reject());
        }
        let fingerprint = offer.public_key.fingerprint(HashAlg::Sha256).to_string();
        let known = self.shared.control.ssh_key_is_known(&fingerprint).await;
        Ok(match known {
            Ok(true) => Auth::Accept,
            Ok(false) | Err(_) => Auth::reject(),
        })
    }

    async fn auth_publickey(
        &mut self,
        user: &str,
        key: VerifiedPublicKey<'_>,
    ) -> Result<Auth, Self::Error> {
        if self.barred() {
            return Ok(Auth::reject());
        }
        let fingerprint = key.public_key.fingerprint(HashAlg::Sha256).to_string();
        let control = &self.shared.control;
        let login = control
            .ssh_login_by_key(user, &fingerprint, self.origin())
            .await;
        Ok(self.enter(login))
    }

    async fn auth_succeeded(&mut self, _session: &mut Ssh) -> Result<(), Self::Error> {
        self.stranger = None;
        self.entered.cancel();
        Ok(())
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Ssh,
    ) -> Result<(), Self::Error> {
        let id = channel.id();
        let Some((_, outlet)) = self.open(id) else {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        };
        let (_, write) = channel.split();
        if let Some(open) = lock(&self.channels).get_mut(&id) {
            open.prepared = Some(Prepared {
                write,
                outlet,
                terminal: None,
                env: BTreeMap::new(),
            });
        }
        reply.accept().await;
        Ok(())
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host_to_connect: &str,
        port_to_connect: u32,
        _originator_address: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        _session: &mut Ssh,
    ) -> Result<(), Self::Error> {
        let (Some(port), Some(login)) = (
            port_inside(host_to_connect, port_to_connect),
            self.login.clone(),
        ) else {
            let prohibited = ChannelOpenFailure::AdministrativelyProhibited;
            reply.reject(prohibited).await;
            return Ok(());
        };
        let id = channel.id();
        let Some((cancel, inbox)) = self.open(id) else {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        };
        let (_, write) = channel.split();
        let forward = Forward {
            control: self.shared.control.clone(),
            login,
            port,
            write,
            inbox,
            cancel,
        };
        let channels = Arc::clone(&self.channels);
        tokio::spawn(async move {
            forward.run(reply).await;
            lock(&channels).remove(&id);
        });
        Ok(())
    }

    async fn channel_close(&mut self, id: ChannelId, _: &mut Ssh) -> Result<(), Self::Error> {
        if let Some(open) = lock(&self.channels).remove(&id) {
            open.cancel.cancel();
        }
        Ok(())
    }

    fn adjust_window(&mut self, _: ChannelId, _: u32) -> u32 {
        self.store.window()
    }

    async fn channel_eof(&mut self, id: ChannelId, _: &mut Ssh) -> Result<(), Self::Error> {
        if let Some(open) = lock(&self.channels).get_mut(&id) {
            open.inlet = None;
        }
        Ok(())
    }

    async fn data(
        &mut self,
        id: ChannelId,
        data: &[u8],
        _session: &mut Ssh,
    ) -> Result<(), Self::Error> {
        let inlet = lock(&self.channels)
            .get(&id)
            .and_then(|open| open.inlet.clone());
        let Some(inlet) = inlet else {
            return Ok(());
        };
        let put = tokio::select! {
            put = inlet.put(data) => put,
            () = self.cut.cancelled() => return Err(russh::Error::Disconnect),
        };
        match put {
            true => Ok(()),
            false => Err(russh::Error::InactivityTimeout),
        }
    }

    async fn pty_request(
        &mut self,
        id: ChannelId,
        term: &str,
        columns: u32,
        rows: u32,
        _width: u32,
        _height: u32,
        _modes: &[(Pty, u32)],
        session: &mut Ssh,
    ) -> Result<(), Self::Error> {
        let mut channels = lock(&self.channels);
        let prepared = channels
            .get_mut(&id)
            .and_then(|open| open.prepared.as_mut());
        let Some(prepared) = prepared else {
            return session.channel_failure(id);
        };
        prepared.terminal = Some(size(columns, rows));
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte);
        if !term.is_empty() && term.len() <= TERM_MAX && term.bytes().all(plain) {
            prepared.env.insert("TERM".to_owned(), term.to_owned());
        }
        session.channel_success(id)
    }

    async fn env_request(
        &mut self,
        id: ChannelId,
        name: &str,
        value: &str,
        session: &mut Ssh,
    ) -> Result<(), Self::Error> {
        let mut channels = lock(&self.channels);
        let prepared = channels
            .get_mut(&id)
            .and_then(|open| open.prepared.as_mut());
        let named = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let fits = !name.is_empty()
            && name.bytes().all(named)
            && name.len() + value.len() <= VARIABLE_BYTES_MAX
            && !value.contains('\0');
        match prepared {
            Some(prepared) if fits && prepared.env.len() < VARIABLES_MAX => {
                prepared.env.insert(name.to_owned(), value.to_owned());
                session.channel_success(id)
            }
            _ => session.channel_failure(id),
        }
    }

    async fn shell_request(&mut self, id: ChannelId, session: &mut Ssh) -> Result<(), Self::Error> {
        let command = CommandLine::Shell(LOGIN_SHELL.to_owned());
        self.begin(id, session, command, GuestAction::ProcessStart)
    }

    async fn exec_request(
        &mut self,
        id: ChannelId,
        data: &[u8],
        session: &mut Ssh,
    ) -> Result<(), Self::Error> {
        let Ok(command) = std::str::from_utf8(data) else {
            return session.channel_failure(id);
        };
        let command = CommandLine::Shell(command.to_owned());
        self.begin(id, session, command, GuestAction::Exec)
    }

    async fn subsystem_request(
        &mut self,
        id: ChannelId,
        name: &str,
        session: &mut Ssh,
    ) -> Result<(), Self::Error> {
        if name != "sftp" {
            return session.channel_failure(id);
        }
        let argv = SFTP_SERVER.map(str::to_owned).to_vec();
        let command = CommandLine::Argv(argv);
        self.begin(id, session, command, GuestAction::ProcessStart)
    }

    async fn window_change_request(
        &mut self,
        id: ChannelId,
        columns: u32,
        rows: u32,
        _width: u32,
        _height: u32,
        _session: &mut Ssh,
    ) -> Result<(), Self::Error> {
        let (columns, rows) = size(columns, rows);
        self.order(id, Order::Resize(columns, rows));
        Ok(())
    }

    async fn signal(
        &mut self,
        id: ChannelId,
        signal: Sig,
        _session: &mut Ssh,
    ) -> Result<(), Self::Error> {
        if let Some(number) = signals::number(&signal) {
            self.order(id, Order::Signal(number));
        }
        Ok(())
    }

    async fn x11_request(
        &mut self,
        id: ChannelId,
        _single_connection: bool,
        _protocol: &str,
        _cookie: &str,
        _screen: u32,
        session: &mut Ssh,
    ) -> Result<(), Self::Error> {
        session.channel_failure(id)
    }
}
