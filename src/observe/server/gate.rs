//! Who may ask: pages of this server and programs with the token, and no page of anybody else's that a browser here has open.

use axum::http::{HeaderMap, Uri, header};

/// The name of a token from outside, for programs that cannot read the one that was drawn.
pub const TOKEN_VARIABLE: &str = "TOMBOLO_DASHBOARD_TOKEN";

/// Fewer can be guessed.
pub(super) const TOKEN_LENGTH_MIN: usize = 16;

/// Bytes of one that is drawn here.
const DRAWN_BYTES: usize = 16;

/// What whoever wants to see the run must know.
pub(super) struct Token(String);

impl Token {
    /// The one from outside, or a new one; none if the one from outside is not good enough.
    pub fn from_environment() -> Option<Self> {
        match std::env::var_os(TOKEN_VARIABLE) {
            None => Some(Token::draw()),
            Some(given) => Token::given(given.to_str()?),
        }
    }

    fn given(token: &str) -> Option<Self> {
        let good =
            token.len() >= TOKEN_LENGTH_MIN && token.chars().all(|c| c.is_ascii_alphanumeric());
        good.then(|| Token(token.to_owned()))
    }

    fn draw() -> Self {
        let mut bytes = [0; DRAWN_BYTES];
        aws_lc_rs::rand::fill(&mut bytes).expect("the system has random bytes");
        Token(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a request shows it, in a header or in its address. How long the comparison takes does not tell how much of it is right.
    pub fn is_shown(&self, headers: &HeaderMap, uri: &Uri) -> bool {
        let bearer = headers.get(header::AUTHORIZATION);
        let bearer = bearer.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let query = uri.query().unwrap_or_default().split('&');
        let query = query.filter_map(|pair| pair.strip_prefix("token="));
        let mut shown = bearer.into_iter().chain(query);
        shown.any(|token| {
            aws_lc_rs::constant_time::verify_slices_are_equal(token.as_bytes(), self.0.as_bytes())
                .is_ok()
        })
    }
}

/// Why a request is not answered, whoever it comes from.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stranger {
    /// It was sent to another name, which somebody has let point here.
    Host,
    /// It comes from a page of another server.
    Origin,
}

/// Looks at where a request was sent to and where it comes from.
pub(super) fn check(headers: &HeaderMap) -> Result<(), Stranger> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next().and_then(|host| host.to_str().ok());
    let host = host
        .filter(|host| is_loopback(host))
        .ok_or(Stranger::Host)?;
    if hosts.next().is_some() {
        return Err(Stranger::Host);
    }
    for origin in headers.get_all(header::ORIGIN) {
        let origin = origin.to_str().unwrap_or_default();
        if origin.strip_prefix("http://") != Some(host) {
            return Err(Stranger::Origin);
        }
    }
    Ok(())
}

/// Whether a name of a server, with a port or without, means this machine. The port may be a tunnel's.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() && !name.is_empty() => name,
        _ => host,
    };
    ["localhost", "127.0.0.1", "[::1]"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(header::HeaderName, &str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| (name.clone(), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn only_names_of_this_machine_and_pages_of_this_server_are_answered() {
        for host in [
            "localhost",
            "localhost:80",
            "127.0.0.1:4601",
            "[::1]:4601",
            "[::1]",
        ] {
            assert_eq!(check(&headers(&[(header::HOST, host)])), Ok(()), "{host}");
            let origin = format!("http://{host}");
            let own = headers(&[(header::HOST, host), (header::ORIGIN, &origin)]);
            assert_eq!(check(&own), Ok(()), "{host}");
        }
        for host in [
            "example.org",
            "127.0.0.1.example.org",
            "localhost:x",
            "",
            "127.0.0.2:80",
            "::1",
        ] {
            let found = check(&headers(&[(header::HOST, host)]));
            assert_eq!(found, Err(Stranger::Host), "{host}");
        }
        assert_eq!(check(&HeaderMap::new()), Err(Stranger::Host));
        let mut two = headers(&[(header::HOST, "localhost")]);
        two.append(header::HOST, "localhost".parse().unwrap());
        assert_eq!(check(&two), Err(Stranger::Host));
        for origin in [
            "https://localhost:1",
            "http://localhost:2",
            "null",
            "http://example.org",
        ] {
            let other = headers(&[(header::HOST, "localhost:1"), (header::ORIGIN, origin)]);
            assert_eq!(check(&other), Err(Stranger::Origin), "{origin}");
        }
    }

    #[test]
    fn a_token_is_taken_from_the_header_or_the_address_and_only_whole() {
        let token = Token::given("0123456789abcdef").unwrap();
        let shown = |authorization: &str, uri: &str| {
            let headers = headers(&[(header::AUTHORIZATION, authorization)]);
            token.is_shown(&headers, &uri.parse().unwrap())
        };
        assert!(shown("Bearer 0123456789abcdef", "/"));
        assert!(shown("", "/metrics?x=1&token=0123456789abcdef"));
        for (authorization, uri) in [
            ("", "/"),
            ("Bearer ", "/?token="),
            ("Bearer 0123456789abcde", "/?token=0123456789abcdef0"),
            ("0123456789abcdef", "/?0123456789abcdef"),
        ] {
            assert!(!shown(authorization, uri), "{authorization} {uri}");
        }
    }

    #[test]
    fn a_token_that_can_be_guessed_is_none_and_no_two_that_are_drawn_are_equal() {
        assert!(Token::given("0123456789abcde").is_none());
        assert!(Token::given("0123456789abcde&").is_none());
        let drawn = [Token::draw(), Token::draw()];
        assert!(drawn.iter().all(|token| token.0.len() == 2 * DRAWN_BYTES));
        assert_ne!(drawn[0].0, drawn[1].0);
    }
}
