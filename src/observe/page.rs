//! The page: the same files for the server, which hands them out one by one, and for a report, which holds all of them and the picture, too.

use super::picture::Picture;

/// The page itself; it names the other two.
pub(super) const HTML: &str = include_str!("../../dashboard/page.html");

/// How it looks.
pub(super) const CSS: &str = include_str!("../../dashboard/page.css");

/// What it does.
pub(super) const JS: &str = include_str!("../../dashboard/page.js");

const STYLE_LINK: &str = r#"<link rel="stylesheet" href="page.css">"#;
const SCRIPT_LINK: &str = r#"<script src="page.js" defer></script>"#;

/// One file with all of it, which needs neither a server nor a network: what happened is in it.
///
/// A browser runs nothing in it but the page's own script: names and reasons are data, and stay data.
pub fn report(picture: &Picture) -> String {
    let data = escaped(&serde_json::to_string(picture).unwrap_or_default());
    // Nobody who writes a name into a record can know it before.
    let nonce = blake3::hash(data.as_bytes()).to_hex();
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'"
    );
    let style = format!(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n<style nonce=\"{nonce}\">\n{CSS}</style>"
    );
    let script = format!(
        "<script type=\"application/json\" id=\"picture\" nonce=\"{nonce}\">{data}</script>\n<script nonce=\"{nonce}\">\n{JS}</script>"
    );
    // The script looks for what it shows as soon as it runs, so it stands behind all of it.
    let html = HTML.replacen(STYLE_LINK, &style, 1);
    let html = html.replacen(SCRIPT_LINK, "", 1);
    html.replacen("</body>", &format!("{script}\n</body>"), 1)
}

/// JSON that may stand in a script: nothing in it ends that script, or begins a comment.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for letter in json.chars() {
        match letter {
            '<' => text.push_str("\\u003c"),
            '>' => text.push_str("\\u003e"),
            '&' => text.push_str("\\u0026"),
            '\u{2028}' => text.push_str("\\u2028"),
            '\u{2029}' => text.push_str("\\u2029"),
            letter => text.push(letter),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::picture::{Bounds, Notice};
    use super::*;

    fn hostile() -> Picture {
        let mut picture = Picture::new(Bounds::REPORT);
        picture.notices.push_back(Notice {
            at: 1.0,
            what: "</script><script>alert(1)</script><!-- \u{2028} & 'x' \"y\"".to_owned(),
        });
        picture
    }

    #[test]
    fn a_report_holds_all_of_the_page_and_nothing_from_elsewhere() {
        let html = report(&hostile());
        assert!(HTML.contains(STYLE_LINK) && HTML.contains(SCRIPT_LINK));
        assert!(!html.contains("page.css") && !html.contains("src="));
        assert!(html.contains(CSS) && html.contains(JS));
        // The namespace of SVG is a name, not an address.
        let addresses = html.replace("http://www.w3.org/2000/svg", "");
        assert!(!addresses.contains("http://") && !addresses.contains("https://"));
    }

    #[test]
    fn what_a_name_holds_stays_data_in_a_report() {
        let picture = hostile();
        let html = report(&picture);
        assert_eq!(html.matches("<script").count(), 2);
        assert_eq!(html.matches("</script>").count(), 2);
        assert!(!html.contains("alert(1)</"));
        let data = html.split("id=\"picture\"").nth(1).unwrap();
        let data = data.split_once('>').unwrap().1;
        let data = data.split("</script>").next().unwrap();
        let read: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(read["notices"][0]["what"], picture.notices[0].what);
        assert_eq!(html, report(&picture), "equal pictures give equal reports");
    }
}
