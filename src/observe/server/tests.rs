use std::net::Ipv4Addr;

use futures_util::StreamExt;

use super::*;
use crate::observe::Bounds;

/// For what should take no time. Only failures wait so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// What was answered.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

async fn serve() -> Dashboard {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let picture = Picture::new(Bounds::LIVE);
    Dashboard::serve(address, picture).await.unwrap()
}

fn bearer(page: &Dashboard) -> String {
    format!("authorization: Bearer {}\r\n", page.token())
}

fn past(round: u64) -> Past {
    Past {
        at: 1.0,
        life: 0,
        event: Event::QuorumReached { round },
    }
}

async fn say(page: &Dashboard, head: &str) -> TcpStream {
    let mut stream = TcpStream::connect(page.address()).await.unwrap();
    // Whoever is refused early may not be able to say all.
    let _ = stream.write_all(head.as_bytes()).await;
    stream
}

/// Asks with the host's name and these headers.
async fn ask(page: &Dashboard, path: &str, headers: &str) -> Answer {
    let host = page.address();
    answer(
        say(
            page,
            &format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n{headers}\r\n"),
        )
        .await,
    )
    .await
}

async fn answer(stream: TcpStream) -> Answer {
    let text = heard(stream).await;
    let (head, body) = text
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no answer: {text:?}"));
    Answer {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        head: head.to_ascii_lowercase(),
        body: body.to_owned(),
    }
}

/// All until the end. One by reset is one, too.
async fn heard(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    let _ = tokio::time::timeout(PATIENCE, read)
        .await
        .expect("the server hangs");
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn the_page_is_for_everybody_here_and_what_it_shows_for_who_has_the_token() {
    let page = serve().await;
    assert!(page.url().ends_with(&format!("/#token={}", page.token())));
    for path in ["/", "/page.css", "/page.js"] {
        let found = ask(&page, path, "").await;
        assert_eq!(found.status, 200);
        let policy = "content-security-policy: default-src 'none'; script-src 'self'";
        assert!(found.head.contains(policy), "{}", found.head);
    }
    let token = page.token().to_owned();
    for path in ["/state.json", "/events", "/metrics"] {
        for headers in [
            String::new(),
            "authorization: Bearer 0123\r\n".to_owned(),
            format!("authorization: Bearer {token}0\r\n"),
        ] {
            let refused = ask(&page, path, &headers).await;
            assert_eq!(refused.status, 401, "{path} {headers}");
            assert!(refused.body.contains("the token is missing or wrong"));
        }
    }
    let state = ask(&page, &format!("/state.json?token={token}"), "").await;
    assert_eq!(state.status, 200);
    page.feed().push(&past(3));
    let state = ask(&page, "/state.json", &bearer(&page)).await;
    let state: serde_json::Value = serde_json::from_str(&state.body).unwrap();
    assert_eq!(
        state["totals"]["events"], 1,
        "what has happened meanwhile is in it"
    );
    let metrics = ask(&page, "/metrics", &bearer(&page)).await;
    assert!(
        metrics
            .head
            .contains("application/openmetrics-text; version=1.0.0")
    );
    assert!(
        metrics.body.contains("tombolo_events_total 1\n"),
        "{}",
        metrics.body
    );
    assert_eq!(ask(&page, "/nowhere", "").await.status, 404);
}

#[tokio::test]
async fn other_servers_pages_and_whoever_wants_to_change_something_are_refused() {
    let page = serve().await;
    let bearer = bearer(&page);
    let elsewhere = format!("GET /state.json HTTP/1.1\r\nhost: example.org\r\n{bearer}\r\n");
    let refused = answer(say(&page, &elsewhere).await).await;
    assert_eq!(refused.status, 403);
    assert!(
        refused
            .body
            .contains("open the address that the run has printed")
    );
    let other = format!("{bearer}origin: http://example.org\r\n");
    let refused = ask(&page, "/state.json", &other).await;
    assert_eq!(refused.status, 403);
    let own = format!("{bearer}origin: http://{}\r\n", page.address());
    assert_eq!(ask(&page, "/state.json", &own).await.status, 200);
    for method in ["POST", "PUT", "DELETE"] {
        let head = format!(
            "{method} /state.json HTTP/1.1\r\nhost: localhost\r\n{bearer}content-length: 0\r\n\r\n"
        );
        assert_eq!(
            answer(say(&page, &head).await).await.status,
            405,
            "{method}"
        );
    }
}

#[tokio::test]
async fn what_is_no_request_or_a_huge_one_gets_a_plain_answer() {
    let page = serve().await;
    let huge = format!("x: {}\r\n", "a".repeat(HEAD_BYTES_MAX));
    assert_eq!(ask(&page, "/", &huge).await.status, 431);
    let many = "x: a\r\n".repeat(HEADERS_MAX);
    assert_eq!(ask(&page, "/", &many).await.status, 431);
    let nonsense = say(&page, "\u{16}\u{3}\u{1} no request\r\n\r\n").await;
    assert_eq!(answer(nonsense).await.status, 400);
    assert_eq!(ask(&page, "/", "").await.status, 200);
}

#[tokio::test]
async fn one_connection_too_many_is_told_so_and_served_when_others_have_gone() {
    let page = serve().await;
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        idle.push(TcpStream::connect(page.address()).await.unwrap());
    }
    let refused = ask(&page, "/", "").await;
    assert_eq!(refused.status, 503);
    assert!(refused.body.contains("too many connections"));
    drop(idle);
    let again = async { while ask(&page, "/", "").await.status != 200 {} };
    let served = tokio::time::timeout(PATIENCE, again).await;
    served.expect("the places of those who went away stay taken");
}

/// Events go on for whoever reads; who does not is dropped, and its connection does not stay for ever.
#[tokio::test]
async fn a_slow_reader_holds_up_nobody_and_is_cut() {
    let page = serve().await;
    let host = page.address();
    let head = format!(
        "GET /events HTTP/1.1\r\nhost: {host}\r\n{}\r\n",
        bearer(&page)
    );
    let mut slow = say(&page, &head).await;
    let mut first = [0; 16];
    slow.read_exact(&mut first).await.unwrap();
    let feed = page.feed();
    // More than its queue and all buffers on the way hold.
    let long = Past {
        at: 1.0,
        life: 0,
        event: Event::GaveUp {
            node: "hq/a".parse().unwrap(),
            reason: "x".repeat(100_000),
        },
    };
    for _ in 0..600 {
        feed.push(&long);
        tokio::task::yield_now().await;
    }
    assert_eq!(page.shared.picture().totals.events, 600);
    assert!(!page.shared.clients.end(), "nobody listens any more");
    // It has not read until now. Either it was cut meanwhile, or it is told why it hears no more.
    let told = heard(slow).await;
    assert!(told.len() < 600 * 100_000, "it was not sent all");
}

#[tokio::test]
async fn who_listens_hears_what_happens_and_the_end() {
    let page = serve().await;
    let host = page.address();
    let head = format!(
        "GET /events HTTP/1.1\r\nhost: {host}\r\n{}\r\n",
        bearer(&page)
    );
    let mut stream = say(&page, &head).await;
    let mut first = [0; 15];
    stream.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    page.feed().push(&past(3));
    page.feed().push(&past(4));
    page.close().await;
    let told = heard(stream).await;
    let (three, four) = (told.find("\"round\":3"), told.find("\"round\":4"));
    assert!(three.is_some() && three < four, "{told}");
    assert!(told.contains("event: end"), "{told}");
}

/// The run's last word is among what still waits when it is over.
#[tokio::test]
async fn what_happened_just_before_the_end_is_told_before_it() {
    let (sender, receiver) = broadcast::channel(64);
    let mut page = serve().await;
    page.follow(receiver, Arc::new(Ledger::default()), || 5.0);
    let listener = page.shared.clients.admit().unwrap();
    for round in 1..=50 {
        let _ = sender.send(Event::QuorumReached { round });
    }
    page.close().await;
    let told: Vec<_> = listener.lines().collect().await;
    assert_eq!(told.len(), 51, "{told:?}");
    assert!(format!("{:?}", told[49]).contains("50"), "{told:?}");
}

#[tokio::test]
async fn events_that_were_missed_are_counted_and_rounds_made_up_for() {
    let (sender, receiver) = broadcast::channel(2);
    let ledger = Arc::new(Ledger::default());
    for round in 1..=9 {
        let _ = sender.send(Event::QuorumReached { round });
    }
    let mut page = serve().await;
    page.follow(receiver, ledger, || 5.0);
    drop(sender);
    let seen = async {
        while page.shared.picture().totals.events < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, seen)
        .await
        .expect("it hears nothing");
    let picture = page.shared.picture();
    assert!(picture.totals.missed >= 7, "{:?}", picture.totals);
    assert_eq!(picture.at, 5.0);
}

#[tokio::test]
async fn what_others_could_listen_to_is_refused() {
    let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 4711));
    let refused = Dashboard::serve(everywhere, Picture::new(Bounds::LIVE)).await;
    let refused = refused
        .err()
        .expect("it is served to everybody")
        .to_string();
    assert!(
        refused.contains("on loopback only, not on 0.0.0.0:4711"),
        "{refused}"
    );
    let page = serve().await;
    let refused = Dashboard::serve(page.address(), Picture::new(Bounds::LIVE)).await;
    let refused = refused.err().expect("two have one port").to_string();
    assert!(refused.contains("take another port"), "{refused}");
}
