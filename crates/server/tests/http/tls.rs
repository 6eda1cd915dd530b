//! The same over TLS.

use cove_client::{Client, ClientConfig, ClientError};
use cove_control::ControlConfig;
use cove_server::{ServerConfig, TlsPem};

use super::harness::Server;

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_makes_the_server_speak_https_only() {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let pem = made.cert.pem().into_bytes();
    let tls = TlsPem {
        certificates: pem.clone(),
        key: made.signing_key.serialize_pem().into_bytes(),
    };
    let config = ServerConfig {
        tls: Some(tls),
        ..ServerConfig::default()
    };
    let server = Server::start(config, ControlConfig::default(), false).await;
    let url = format!("https://{}", server.address);
    let trusting = ClientConfig {
        ca_pem: Some(pem),
        ..ClientConfig::new(&url, Some(server.token.clone()))
    };
    let client = Client::new(trusting).unwrap();
    assert_eq!(client.health().await.unwrap().status, "ok");
    client.images().await.unwrap();

    let distrusting = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let other = ClientConfig {
        ca_pem: Some(distrusting.cert.pem().into_bytes()),
        ..ClientConfig::new(&url, None)
    };
    let error = Client::new(other).unwrap().health().await.unwrap_err();
    assert!(matches!(error, ClientError::Connect { .. }), "{error:?}");
    let plain = Client::new(ClientConfig::new(
        format!("http://{}", server.address),
        None,
    ))
    .unwrap();
    assert!(plain.health().await.is_err());
}
