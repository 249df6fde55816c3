//! Rust source with comments and literals blanked, so that a rule about code does not trip over a word in a sentence.

/// The same text, line by line, with everything inside comments, strings and character literals replaced by spaces.
pub fn only(source: &str) -> String {
    let mut rest = source;
    let mut code = String::with_capacity(source.len());
    while let Some(first) = rest.chars().next() {
        let after_word = code
            .chars()
            .next_back()
            .is_some_and(|last| last.is_alphanumeric() || last == '_');
        let skipped = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => block_comment(rest),
            '"' => string(rest),
            'r' | 'b' | 'c' if !after_word => prefixed(rest),
            '\'' => character(rest),
            _ => 0,
        };
        if skipped == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            let blank = |letter| if letter == '\n' { '\n' } else { ' ' };
            code.extend(rest[..skipped].chars().map(blank));
            rest = &rest[skipped..];
        }
    }
    code
}

/// The length of a block comment, which may hold others.
fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest.starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length of a string with escapes.
fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of a literal with a prefix such as `r#"`, `b"` or `br"`; 0 if it is a word.
fn prefixed(text: &str) -> usize {
    let letters = text.len() - text.trim_start_matches(['r', 'b', 'c']).len();
    let raw = text[..letters].contains('r');
    let after = &text[letters..];
    if letters > 2 {
        return 0;
    }
    if !raw {
        return match after.chars().next() {
            Some('"') => letters + string(after),
            _ => 0,
        };
    }
    let hashes = after.len() - after.trim_start_matches('#').len();
    if !after[hashes..].starts_with('"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let body = letters + hashes + 1;
    text[body..]
        .find(&end)
        .map_or(text.len(), |at| body + at + end.len())
}

/// The length of a character literal; 0 if it is a lifetime.
fn character(text: &str) -> usize {
    let mut letters = text.char_indices().skip(1);
    match letters.next() {
        Some((_, '\\')) => text[2..]
            .char_indices()
            .skip(1)
            .find(|(_, letter)| *letter == '\'')
            .map_or(0, |(at, _)| at + 3),
        Some(_) => match letters.next() {
            Some((at, '\'')) => at + 1,
            _ => 0,
        },
        None => 0,
    }
}

/// Whether `word` stands in `code` with no letter, digit or underscore on either side.
pub fn has_word(code: &str, word: &str) -> bool {
    let part = |letter: char| letter.is_alphanumeric() || letter == '_';
    code.match_indices(word).any(|(at, _)| {
        !code[..at].chars().next_back().is_some_and(part)
            && !code[at + word.len()..].chars().next().is_some_and(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_in_comments_and_literals_are_blank_and_lines_stay() {
        let source =
            "a(); // word\n/* word /* word */ */ b(\"word \\\" word\", r#\"word \" word\"#);\n";
        let code = only(source);
        assert!(!has_word(&code, "word"), "{code:?}");
        assert_eq!(code.lines().count(), source.lines().count());
        assert!(has_word(&code, "a") && has_word(&code, "b"));
    }

    #[test]
    fn code_behind_a_literal_is_seen() {
        for source in [
            "let a = '\"'; word();",
            "let a = '\\''; word();",
            "fn f<'a>(x: &'a str) { word() }",
            "let for_r = br\"x\"; word();",
            "bar\"text\"; word();",
            "let a = \"\\\\\"; word();",
            "let a = b'\"'; word();",
        ] {
            assert!(has_word(&only(source), "word"), "{source}");
        }
    }

    #[test]
    fn a_part_of_a_word_is_not_the_word() {
        assert!(!has_word("deny(unsafe_code)", "unsafe"));
        assert!(has_word("x = unsafe { y }", "unsafe"));
    }
}
