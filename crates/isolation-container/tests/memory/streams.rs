//! Whoever follows a sandbox from outside does not notice that it is captured.

use cove_isolation::Afterwards;
use cove_protocol::client::FollowEvent;
use cove_protocol::message::Start;

use crate::fixture::{Host, PATIENCE, shell};

#[tokio::test(flavor = "multi_thread")]
async fn an_exec_goes_on_over_captures_without_a_byte_lost_or_repeated() {
    let host = Host::open();
    let one = host.boot("one").await;
    let start = Start {
        kill_on_disconnect: true,
        ..shell(
            "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo line $i; done; sleep 0.2; echo end",
        )
    };
    let mut follow = one.guest.start_following(start).await.unwrap();
    let reader = tokio::spawn(async move {
        let mut text = Vec::new();
        while let Some(event) = follow.next().await.unwrap() {
            match event {
                FollowEvent::Output { data, dropped, .. } => {
                    assert_eq!(dropped, 0);
                    text.extend_from_slice(&data);
                }
                FollowEvent::Exit(exit) => return (text, exit.code),
                FollowEvent::Started(_) | FollowEvent::Refused(_) => {}
            }
        }
        panic!("no exit");
    });
    for _ in 0..3 {
        host.capture(&one).await;
    }
    let held = host.try_capture(&one, Afterwards::Hold).await.unwrap();
    one.machine.thaw().await.unwrap();
    let (text, code) = tokio::time::timeout(PATIENCE, reader)
        .await
        .unwrap()
        .unwrap();
    let wanted: String = (1..=3000).map(|n| format!("line {n}\n")).collect();
    assert_eq!(String::from_utf8(text).unwrap(), wanted + "end\n");
    assert_eq!(code, 0);
    drop(held);
    host.close(vec![one]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_knows_its_own_name_and_leaves_what_people_wrote() {
    let host = Host::open();
    let one = host.boot("one").await;
    one.say("echo 10.0.0.9 other >> /etc/hosts").await;
    let snapshot = host.capture(&one).await;
    let two = host.restore(&snapshot, "two").await;
    assert_eq!(two.say("cat /etc/hostname").await, "two");
    let hosts = two.say("cat /etc/hosts").await;
    assert!(hosts.contains("localhost two\n"), "{hosts}");
    assert!(hosts.contains("10.0.0.9 other"), "{hosts}");
    assert_eq!(one.say("cat /etc/hostname").await, "one");
    host.close(vec![one, two]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_machine_is_captured_and_stays_frozen() {
    let host = Host::open();
    let one = host.boot("one").await;
    one.machine.freeze().await.unwrap();
    let snapshot = host.capture(&one).await;
    let before = one.used_at_rest().await;
    let two = host.restore(&snapshot, "two").await;
    assert_eq!(two.say("echo alive").await, "alive");
    assert_eq!(one.used().await, before);
    one.machine.thaw().await.unwrap();
    assert_eq!(one.say("echo alive").await, "alive");
    host.close(vec![one, two]).await;
}
