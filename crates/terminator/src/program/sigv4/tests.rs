//! The examples of AWS's documentation, and requests that must not be signed. The tests with sandboxes compare with
//! botocore besides.

use hyper::Request;
use time::macros::datetime;

use super::super::chunks::Resigner;
use super::super::table::tests::usable;
use super::*;

const PLACEHOLDER: &str = "cove-secret-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const KEYS: &str = "AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
const NOW: OffsetDateTime = datetime!(2013-05-24 00:00:00 UTC);
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn usables() -> Usables {
    Usables {
        secrets: vec![usable("sigv4:us-east-1/s3", PLACEHOLDER, KEYS)],
        revoked: Vec::new(),
    }
}

fn credential(rest: &str, signed: &str) -> String {
    let zeros = "0".repeat(64);
    format!(
        "{ALGORITHM} Credential={PLACEHOLDER}/20130524/{rest}, SignedHeaders={signed}, Signature={zeros}"
    )
}

fn parts(method: &str, path: &str, headers: &[(&str, &str)]) -> Parts {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

fn signed(parts: &mut Parts, usables: &Usables) -> Result<Option<(Payload, Chain)>, Refusal> {
    let Some(signing) = wanted(parts, usables, NOW)? else {
        return Ok(None);
    };
    let payload = signing.payload(&parts.headers)?;
    let chain = signing.sign(parts, &payload, Some(b""), NOW)?;
    Ok(Some((payload, chain)))
}

#[test]
fn a_header_is_signed_as_in_the_documentation() {
    let authorization = credential(
        "us-east-1/s3/aws4_request",
        "host;range;x-amz-content-sha256;x-amz-date",
    );
    let mut request = parts(
        "GET",
        "/test.txt",
        &[
            ("Host", "examplebucket.s3.amazonaws.com"),
            ("Range", "bytes=0-9"),
            ("x-amz-content-sha256", EMPTY),
            // Another time than the host's, and a session that is not this one's.
            ("x-amz-date", "20991231T235959Z"),
            ("x-amz-security-token", "stale"),
            ("Authorization", &authorization),
        ],
    );
    signed(&mut request, &usables()).unwrap().unwrap();
    assert_eq!(
        request.headers["authorization"],
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
         SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, \
         Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    );
}

#[test]
fn a_presigned_address_is_signed_anew_for_a_short_time() {
    let path = |expires: &str, date: &str| {
        format!(
            "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={PLACEHOLDER}%2F20130524%2Fus-east-1%2Fs3%2Faws4_request\
             &X-Amz-Date={date}&X-Amz-Expires={expires}&X-Amz-SignedHeaders=host&X-Amz-Signature=00"
        )
    };
    let host = [("Host", "examplebucket.s3.amazonaws.com")];
    let mut request = parts("GET", &path("86400", "20130524T000000Z"), &host);
    let usables = usables();
    let signing = wanted(&mut request, &usables, NOW).unwrap().unwrap();
    assert_eq!(signing.presigned, Some(EXPIRES_S));
    // With the time of the documentation's example.
    let signing = Signing {
        presigned: Some(86_400),
        ..signing
    };
    let payload = signing.payload(&request.headers).unwrap();
    assert_eq!(payload, Payload::Said(UNSIGNED.to_owned()));
    signing.sign(&mut request, &payload, None, NOW).unwrap();
    let query = request.uri.query().unwrap();
    assert!(
        query.ends_with(
            "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
        ),
        "{query}"
    );
    for (expires, date) in [
        ("60", "20130523T235800Z"),
        ("86400", "20130524T010000Z"),
        ("604801", "20130524T000000Z"),
        ("0", "20130524T000000Z"),
    ] {
        let mut request = parts("GET", &path(expires, date), &host);
        let refused = wanted(&mut request, &usables, NOW).err();
        assert_eq!(refused, Some(Refusal::Expired), "{expires} {date}");
    }
}

fn upload(content: &str) -> Parts {
    let names = "content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class";
    let authorization = credential("us-east-1/s3/aws4_request", names);
    parts(
        "PUT",
        "/examplebucket/chunkObject.txt",
        &[
            ("Host", "s3.amazonaws.com"),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
            ("x-amz-content-sha256", content),
            ("Content-Encoding", "aws-chunked"),
            ("x-amz-decoded-content-length", "66560"),
            ("Content-Length", "66824"),
            ("Authorization", &authorization),
        ],
    )
}

#[test]
fn chunks_are_signed_as_in_the_documentation_however_they_are_cut() {
    let zeros = "0".repeat(64);
    let chunk = |size: usize| {
        format!(
            "{size:x};chunk-signature={zeros}\r\n{}\r\n",
            "a".repeat(size)
        )
    };
    let body = [chunk(65536), chunk(1024), chunk(0)].concat();
    assert_eq!(body.len(), 66824);
    for at in [1, 7, 1000, 65536, 100_000] {
        let mut request = upload(SIGNED_CHUNKS);
        let (payload, chain) = signed(&mut request, &usables()).unwrap().unwrap();
        assert_eq!(payload, Payload::Chunks { trailer: false });
        let text = request.headers["authorization"].to_str().unwrap();
        assert!(
            text.ends_with("4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"),
            "{text}"
        );
        let mut resigner = Resigner::new(chain, false);
        let mut sent = Vec::new();
        // Cut small only where the cuts can matter.
        let pieces = match at < 100 {
            true => [&body.as_bytes()[..200], &body.as_bytes()[200..65500]].to_vec(),
            false => Vec::new(),
        };
        let rest = if at < 100 {
            &body.as_bytes()[65500..]
        } else {
            body.as_bytes()
        };
        for piece in pieces.into_iter().chain(rest.chunks(at)) {
            sent.extend(resigner.push(piece).unwrap());
        }
        resigner.finish().unwrap();
        assert_eq!(sent.len(), body.len());
        let sent = String::from_utf8(sent).unwrap();
        for signature in [
            "10000;chunk-signature=ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648\r\n",
            "400;chunk-signature=0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497\r\n",
            "0;chunk-signature=b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9\r\n\r\n",
        ] {
            assert!(sent.contains(signature), "{signature} cut at {at}");
        }
    }
}

#[test]
fn malformed_chunks_end_the_request() {
    let zeros = "0".repeat(64);
    let good = format!("3;chunk-signature={zeros}\r\nabc\r\n");
    for (bad, trailer) in [
        (format!("3;chunk-signature={zeros}\r\nabcd\r\n"), false),
        ("3\r\nabc\r\n".to_owned(), false),
        (format!("200000;chunk-signature={zeros}\r\n"), false),
        (format!("-3;chunk-signature={zeros}\r\nabc\r\n"), false),
        (format!("3;chunk-signature={zeros};x=1\r\nabc\r\n"), false),
        (
            format!("{good}0;chunk-signature={zeros}\r\n\r\nPOST / HTTP/1.1\r\n"),
            false,
        ),
        (
            format!("{good}0;chunk-signature={zeros}\r\nx-amz-checksum-crc32:x\r\n\r\n"),
            true,
        ),
        ("x".repeat(1000), false),
        (
            format!("0;chunk-signature={zeros}\r\n{}", "x".repeat(5000)),
            true,
        ),
    ] {
        let (_, chain) = signed(&mut upload(SIGNED_CHUNKS), &usables())
            .unwrap()
            .unwrap();
        let mut resigner = Resigner::new(chain, trailer);
        assert!(resigner.push(bad.as_bytes()).is_err(), "{bad}");
    }
    let (_, chain) = signed(&mut upload(SIGNED_CHUNKS), &usables())
        .unwrap()
        .unwrap();
    let mut resigner = Resigner::new(chain, false);
    resigner.push(good.as_bytes()).unwrap();
    assert!(resigner.finish().is_err());
}

#[test]
fn other_regions_services_and_algorithms_are_refused() {
    let request = |authorization: &str, content: &str| {
        let headers = [
            ("Host", "h"),
            ("x-amz-content-sha256", content),
            ("Authorization", authorization),
        ];
        signed(&mut parts("GET", "/", &headers), &usables()).err()
    };
    let names = "host;x-amz-date";
    for scope in ["eu-west-1/s3/aws4_request", "us-east-1/sts/aws4_request"] {
        assert_eq!(
            request(&credential(scope, names), EMPTY),
            Some(Refusal::Scope)
        );
    }
    let good = credential("us-east-1/s3/aws4_request", names);
    assert_eq!(request(&good, EMPTY), None);
    let asymmetric = good.replace(ALGORITHM, ASYMMETRIC);
    assert_eq!(request(&asymmetric, EMPTY), Some(Refusal::Asymmetric));
    let chunks = "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD";
    assert_eq!(request(&good, chunks), Some(Refusal::Asymmetric));
    for (bad, content) in [
        (credential("us-east-1/s3/aws5_request", names), EMPTY),
        (credential("us-east-1/s3", names), EMPTY),
        (credential("us-east-1/s3/aws4_request", "x-amz-date"), EMPTY),
        (format!("{good}, Credential=x"), EMPTY),
        (good.clone(), "STREAMING-SOMETHING"),
    ] {
        assert_eq!(request(&bad, content), Some(Refusal::Signature), "{bad}");
    }
    // Another's placeholder, or keys of the guest's own, are not signed.
    let other = good.replace(PLACEHOLDER, "cove-secret-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb");
    let mut untouched = parts("GET", "/", &[("Host", "h"), ("Authorization", &other)]);
    assert!(signed(&mut untouched, &usables()).unwrap().is_none());
    assert_eq!(untouched.headers["authorization"], other);
    assert_eq!(
        super::super::swap::swap(&mut untouched, &usables(), NOW).err(),
        Some(Refusal::Unknown)
    );
}

#[test]
fn a_session_is_the_secrets_own() {
    let mut usables = usables();
    usables.secrets = vec![usable(
        "sigv4:us-east-1/s3",
        PLACEHOLDER,
        &format!("{KEYS}:token=="),
    )];
    let authorization = credential("us-east-1/s3/aws4_request", "host;x-amz-date");
    let headers = [
        ("Host", "h"),
        ("Authorization", &*authorization),
        ("x-amz-security-token", "stale"),
    ];
    let mut request = parts("GET", "/", &headers);
    signed(&mut request, &usables).unwrap().unwrap();
    assert_eq!(request.headers["x-amz-security-token"], "token==");
    let text = request.headers["authorization"].to_str().unwrap();
    assert!(
        text.contains("SignedHeaders=host;x-amz-date;x-amz-security-token,"),
        "{text}"
    );
}

#[test]
fn paths_are_written_as_each_service_signs_them() {
    let usables = usables();
    let path = |service: &str, path: &str| {
        let authorization = credential("us-east-1/s3/aws4_request", "host");
        let mut request = parts(
            "GET",
            "/",
            &[("Host", "h"), ("Authorization", &authorization)],
        );
        let signing = wanted(&mut request, &usables, NOW).unwrap().unwrap();
        Signing { service, ..signing }.canonical_path(path)
    };
    assert_eq!(path("s3", "/a//b/../c%2Fd(e)"), "/a//b/../c%2Fd%28e%29");
    assert_eq!(path("lambda", "/a//b/../c%3Ad/"), "/a/c%253Ad/");
    assert_eq!(path("sts", "/"), "/");
}
