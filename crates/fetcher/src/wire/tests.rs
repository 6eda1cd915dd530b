use proptest::prelude::*;

use super::*;

fn digest() -> impl Strategy<Value = Digest> {
    any::<[u8; 32]>().prop_map(Digest)
}

fn text() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9 =:/._-]{0,40}"
}

fn manifest() -> impl Strategy<Value = Manifest> {
    let layer = (digest(), any::<u64>(), digest()).prop_map(|(digest, size, diff_id)| Layer {
        digest,
        size,
        diff_id,
    });
    let list = || proptest::collection::vec(text(), 0..5);
    (
        digest(),
        proptest::collection::vec(layer, 1..6),
        proptest::collection::vec((text(), text()), 0..5),
        (text(), text(), list(), list()),
    )
        .prop_map(
            |(digest, layers, env, (user, workdir, entrypoint, cmd))| Manifest {
                digest,
                layers,
                configuration: Configuration {
                    env,
                    user,
                    workdir,
                    entrypoint,
                    cmd,
                },
            },
        )
}

fn error() -> impl Strategy<Value = RegistryError> {
    prop_oneof![
        (text(), text())
            .prop_map(|(registry, detail)| RegistryError::Unreachable { registry, detail }),
        (any::<u16>(), text()).prop_map(|(status, url)| RegistryError::Status { status, url }),
        (text(), any::<u64>(), any::<u64>())
            .prop_map(|(what, size, limit)| { RegistryError::TooLarge { what, size, limit } }),
        (any::<u32>(), text())
            .prop_map(|(attempts, detail)| RegistryError::BrokenOff { attempts, detail }),
        Just(RegistryError::CredentialsNeeded),
    ]
}

fn reply() -> impl Strategy<Value = Reply> {
    let stream = 0..STREAMS_MAX;
    prop_oneof![
        manifest().prop_map(|manifest| Reply::Resolved(Box::new(manifest))),
        error().prop_map(Reply::Failed),
        (
            stream.clone(),
            proptest::collection::vec(any::<u8>(), 1..200)
        )
            .prop_map(|(stream, bytes)| Reply::Data { stream, bytes }),
        stream.clone().prop_map(|stream| Reply::Restart { stream }),
        (stream, proptest::option::of(error())).prop_map(|(stream, error)| Reply::End {
            stream,
            result: error.map_or(Ok(()), Err),
        }),
    ]
}

/// Reads one frame as the parent does.
fn read(frame: &[u8]) -> Result<Reply, BadFrame> {
    let (header, payload) = frame.split_first_chunk().ok_or(BadFrame)?;
    let header = Header::of_reply(*header)?;
    if header.length != payload.len() {
        return Err(BadFrame);
    }
    Reply::decode(header, payload.to_vec())
}

proptest! {
    #[test]
    fn a_reply_is_read_as_it_was_written(reply in reply()) {
        prop_assert_eq!(read(&reply.encode()), Ok(reply));
    }

    #[test]
    fn a_reply_cut_short_or_followed_by_more_is_refused(reply in reply(), cut in any::<u16>()) {
        let frame = reply.encode();
        let keep = usize::from(cut) % frame.len();
        prop_assert_eq!(read(&frame[..keep]), Err(BadFrame));
        // The same with a header that tells the truth about the length.
        if keep >= HEADER_BYTES {
            let mut short = frame[..keep].to_vec();
            let length = u32::try_from(keep - HEADER_BYTES).unwrap();
            short[4..8].copy_from_slice(&length.to_le_bytes());
            let data = matches!(reply, Reply::Data { .. }) && keep > HEADER_BYTES;
            prop_assert!(data || read(&short).is_err());
        }
        let mut long = frame;
        long.push(0);
        let length = u32::try_from(long.len() - HEADER_BYTES).unwrap();
        long[4..8].copy_from_slice(&length.to_le_bytes());
        let data = matches!(reply, Reply::Data { .. });
        prop_assert!(data || read(&long).is_err());
    }

    /// Whatever a taken-over program sends, reading it neither panics nor takes more than was sent.
    #[test]
    fn random_bytes_are_refused_or_stay_within_the_limits(
        kind in 14u8..24,
        stream in 0u8..6,
        payload in proptest::collection::vec(any::<u8>(), 0..2000),
        flips in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..8),
        whole in reply(),
    ) {
        let mut frame = vec![kind, stream, 0, 0];
        frame.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
        frame.extend(payload);
        let _ = read(&frame);
        let mut damaged = whole.encode();
        for (at, value) in flips {
            let at = usize::from(at) % damaged.len();
            damaged[at] = value;
        }
        if let Ok(Reply::Resolved(manifest)) = read(&damaged) {
            prop_assert!(!manifest.layers.is_empty() && manifest.layers.len() <= LAYERS_MAX);
            prop_assert!(manifest.configuration.env.len() <= VARIABLES_MAX);
        }
        if let Ok(Reply::Failed(error)) = read(&damaged) {
            prop_assert!(!error.to_string().chars().any(char::is_control));
        }
    }

    #[test]
    fn headers_announce_no_more_than_their_kind_may_hold(bytes in any::<[u8; HEADER_BYTES]>()) {
        if let Ok(header) = Header::of_reply(bytes) {
            prop_assert!(header.length <= 1 << 20);
        }
    }
}

#[test]
fn an_order_is_read_as_it_was_written() {
    let order = Order {
        registry: "r.example".into(),
        server: "r.example:5000".into(),
        repository: "team/app".into(),
        wanted: "1".into(),
        digest: Some(Digest([7; 32])),
        arch: "amd64".into(),
        login: Some(Login {
            username: "me".into(),
            password: "hunter2".into(),
        }),
        plain: vec!["p.example:5000".into()],
        reachable: Reachable {
            anywhere: false,
            open: vec!["10.1.0.0/16".parse().unwrap()],
            exempt: vec!["d.example".into()],
        },
        resolvers: vec![
            "127.0.0.53:53".parse().unwrap(),
            "[::1]:53".parse().unwrap(),
        ],
        resolv: b"nameserver 127.0.0.53\n".to_vec(),
        hosts: b"127.0.0.1 localhost\n".to_vec(),
        trust: vec![1, 2, 3],
    };
    assert!(!format!("{order:?}").contains("hunter2"));
    let frame = Request::Start(Box::new(order.clone())).encode();
    let (header, payload) = frame.split_first_chunk().unwrap();
    let header = Header::of_request(*header).unwrap();
    assert_eq!(
        Request::decode(header, payload),
        Ok(Request::Start(Box::new(order)))
    );
}

#[test]
fn digests_have_one_spelling() {
    let text = format!("sha256:{}", "0a".repeat(32));
    assert_eq!(Digest::parse(&text).unwrap().to_string(), text);
    for bad in ["", "sha256:", "md5:00", &text.to_uppercase(), &text[..70]] {
        assert_eq!(Digest::parse(bad), None, "{bad}");
    }
}
