//! Takes secrets out of a configuration. A scanner, not a parser: a file that is wrong is what reports are about, and its
//! secrets are to stay at home as well. When in doubt it removes.

/// Parts of the names of keys and tables whose values nobody else is to see.
const SECRETS: [&str; 6] = ["secret", "token", "password", "passwd", "credential", "private_key"];
const REMOVED: &str = "\"(removed)\"";

/// The configuration as it is, but for the values of keys, and of whole tables, that are named like secrets.
pub(super) fn without_secrets(text: &str) -> String {
    let mut kept = String::new();
    // Where the key of the next value begins, and where the line does.
    let (mut key, mut line) = (0, 0);
    // Arrays and inline tables that are open.
    let mut depth = 0_u32;
    let mut in_secret_table = false;
    let mut at = 0;
    while let Some(next) = text[at..].chars().next() {
        let is_header = next == '[' && text[line..at].trim().is_empty();
        let end = match next {
            '"' | '\'' => string_end(text, at),
            '#' => line_end(text, at),
            '[' if is_header && depth == 0 => line_end(text, at),
            _ => at + next.len_utf8(),
        };
        kept.push_str(&text[at..end]);
        match next {
            // Inside of what was never closed, a header may begin a secret table, but not end one.
            '[' if is_header && depth > 0 => {
                in_secret_table |= is_secret(&text[at..line_end(text, at)]);
                depth += 1;
            }
            '[' if is_header => in_secret_table = is_secret(&text[at..end]),
            '=' if in_secret_table || is_secret(&text[key..at]) => {
                kept.push(' ');
                kept.push_str(REMOVED);
                at = value_end(text, end);
                continue;
            }
            '[' | '{' => depth += 1,
            ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        match next {
            '\n' => (key, line) = (end, end),
            ',' | '{' | '=' => key = end,
            _ => {}
        }
        at = end;
    }
    kept
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('-', "_");
    SECRETS.iter().any(|secret| name.contains(secret))
}

fn line_end(text: &str, at: usize) -> usize {
    text[at..].find('\n').map_or(text.len(), |len| at + len)
}

/// Behind the string that begins here; one that is not closed ends with its line.
fn string_end(text: &str, at: usize) -> usize {
    let rest = &text[at..];
    for (quote, long, escapes) in
        [("\"\"\"", true, true), ("'''", true, false), ("\"", false, true), ("'", false, false)]
    {
        let Some(inside) = rest.strip_prefix(quote) else { continue };
        let limit = if long { inside.len() } else { line_end(inside, 0) };
        let mut from = 0;
        while let Some(found) = inside[from..limit].find(quote).map(|found| from + found) {
            let backslashes = inside[..found].bytes().rev().take_while(|byte| *byte == b'\\').count();
            if !escapes || backslashes % 2 == 0 {
                // Up to two quotes may stand before the closing three.
                let more = if long {
                    inside[found + 3..].bytes().take(2).take_while(|byte| *byte == quote.as_bytes()[0]).count()
                } else {
                    0
                };
                return at + quote.len() + found + quote.len() + more;
            }
            from = found + 1;
        }
        return at + quote.len() + limit;
    }
    at
}

/// Behind the value that begins here: all of an array or inline table.
fn value_end(text: &str, from: usize) -> usize {
    let mut depth = 0_u32;
    let mut at = from;
    while let Some(next) = text[at..].chars().next() {
        match next {
            '"' | '\'' => at = string_end(text, at),
            '[' | '{' => (depth, at) = (depth + 1, at + 1),
            ']' | '}' | ',' | '\n' | '#' if depth == 0 => break,
            ']' | '}' => (depth, at) = (depth - 1, at + 1),
            '#' => at = line_end(text, at),
            _ => at += next.len_utf8(),
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::without_secrets;

    #[test]
    fn values_of_secret_keys_are_removed() {
        let text = "[http]\nlisten = \"127.0.0.1:1\"\n  api_token= \"abc\"\nPassword = 'x'\n";
        let shown = without_secrets(text);
        assert_eq!(shown, "[http]\nlisten = \"127.0.0.1:1\"\n  api_token= \"(removed)\"\nPassword = \"(removed)\"\n");
    }

    #[test]
    fn wherever_they_are() {
        for (text, shown) in [
            ("a = {token = \"x\"}\n", "a = {token = \"(removed)\"}\n"),
            ("a = { user = \"u\", token = \"x\", b = 1 }", "a = { user = \"u\", token = \"(removed)\", b = 1 }"),
            (
                "a = [{ token = 7 }, { token = [\"x\", \"}\"] }]\nb = 1",
                "a = [{ token = \"(removed)\"}, { token = \"(removed)\"}]\nb = 1",
            ),
            ("auth.token = '''x\nx'''\nb = 1\n", "auth.token = \"(removed)\"\nb = 1\n"),
            ("token = \"\"\"a\\\"\"\"\"\"\nb = 1\n", "token = \"(removed)\"\nb = 1\n"),
            ("\"api-token\" = \"x\" # mine\n", "\"api-token\" = \"(removed)\"# mine\n"),
            (
                "[credentials]\nuser = \"x\"\n[http]\na = \"y\"\n",
                "[credentials]\nuser = \"(removed)\"\n[http]\na = \"y\"\n",
            ),
            ("[secrets]\na = [\n  [1],\n]\nb = 2\n", "[secrets]\na = \"(removed)\"\nb = \"(removed)\"\n"),
            ("a = [ # open\n[secrets]\nb = 2\n", "a = [ # open\n[secrets]\nb = \"(removed)\"\n"),
            ("[[secrets]]\nv = \"x\"\n", "[[secrets]]\nv = \"(removed)\"\n"),
        ] {
            assert_eq!(without_secrets(text), shown, "{text}");
        }
    }

    #[test]
    fn all_else_is_as_it_was_and_what_is_wrong_does_no_harm() {
        for text in [
            "# token = \"x\"\na = \"token = x\"\nb = ['# {', \"=\"]\n[zones.a]\nmemory = \"1GiB\"\n",
            "a = \"not closed\nb = é\n]]}}\n",
            "",
        ] {
            assert_eq!(without_secrets(text), text);
        }
        assert_eq!(without_secrets("token = \"not closed\nb = 1"), "token = \"(removed)\"\nb = 1");
        assert_eq!(without_secrets("token = {a = 'x'"), "token = \"(removed)\"");
        assert_eq!(without_secrets("token ="), "token = \"(removed)\"");
    }
}
