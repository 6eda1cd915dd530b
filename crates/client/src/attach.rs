//! A WebSocket attached to a process: output with offsets in, input and requests out.

use async_recursion::async_recursion as boxed;
use cove_api::process::{AttachEvent, AttachFrame, AttachRequest, Stream};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use http::{Method, StatusCode, header};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::{Client, ClientError, Outgoing};

/// The largest message taken from a server.
const MESSAGE_MAX: usize = 4 * 1024 * 1024;

type Socket = WebSocketStream<TokioIo<Upgraded>>;

pub(crate) async fn open(client: &Client, path: &str) -> Result<Attachment, ClientError> {
    // The key only proves that the other side speaks the protocol, so it need not be random.
    let key = "Y292ZS1jbGllbnQtYXR0YQ==";
    let headers = [
        (header::CONNECTION, "upgrade"),
        (header::UPGRADE, "websocket"),
        (header::SEC_WEBSOCKET_VERSION, "13"),
        (header::SEC_WEBSOCKET_KEY, key),
    ];
    let mut response = client
        .call(Method::GET, path, &headers, Outgoing::empty())
        .await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(ClientError::Protocol(
            "the server did not switch to a WebSocket",
        ));
    }
    let upgraded = hyper::upgrade::on(&mut response)
        .await
        .map_err(ClientError::Http)?;
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_MAX))
        .max_frame_size(Some(MESSAGE_MAX));
    let socket =
        WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Client, Some(config)).await;
    let (sink, stream) = socket.split();
    Ok(Attachment {
        sender: AttachSender { sink },
        receiver: AttachReceiver { stream },
    })
}

/// What an attached process says.
#[derive(Debug)]
pub enum AttachMessage {
    Output {
        stream: Stream,
        offset: u64,
        data: Vec<u8>,
    },
    Event(AttachEvent),
}

pub struct Attachment {
    pub sender: AttachSender,
    pub receiver: AttachReceiver,
}

pub struct AttachSender {
    sink: SplitSink<Socket, Message>,
}

impl AttachSender {
    /// Input for the process.
    #[boxed]
    pub async fn input(&mut self, bytes: Vec<u8>) -> Result<(), ClientError> {
        self.sink.send(Message::binary(bytes)).await.map_err(broken)
    }

    #[boxed]
    pub async fn request(&mut self, request: &AttachRequest) -> Result<(), ClientError> {
        let text = serde_json::to_string(request).map_err(ClientError::Answer)?;
        self.sink.send(Message::text(text)).await.map_err(broken)
    }

    /// Leaves; the process goes on.
    #[boxed]
    pub async fn close(&mut self) -> Result<(), ClientError> {
        match self.sink.close().await {
            Ok(()) | Err(Error::ConnectionClosed | Error::AlreadyClosed) => Ok(()),
            Err(error) => Err(broken(error)),
        }
    }
}

pub struct AttachReceiver {
    stream: SplitStream<Socket>,
}

impl AttachReceiver {
    /// The next message; `None` when the server closed.
    #[boxed]
    pub async fn next(&mut self) -> Result<Option<AttachMessage>, ClientError> {
        loop {
            let message = match self.stream.next().await {
                None => return Ok(None),
                Some(Err(Error::ConnectionClosed | Error::AlreadyClosed)) => return Ok(None),
                Some(Err(error)) => return Err(broken(error)),
                Some(Ok(message)) => message,
            };
            match message {
                Message::Binary(bytes) => {
                    let frame = AttachFrame::decode(&bytes)
                        .ok_or(ClientError::Protocol("an output message is malformed"))?;
                    return Ok(Some(AttachMessage::Output {
                        stream: frame.stream,
                        offset: frame.offset,
                        data: frame.data.to_vec(),
                    }));
                }
                Message::Text(text) => {
                    let event = serde_json::from_str(&text).map_err(ClientError::Answer)?;
                    return Ok(Some(AttachMessage::Event(event)));
                }
                Message::Close(_) => return Ok(None),
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }
}

fn broken(error: Error) -> ClientError {
    ClientError::WebSocket(Box::new(error))
}
