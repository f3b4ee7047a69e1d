//! What transformers' Jinja accepts in a template's text and minijinja does not.

/// The same template for minijinja:
/// - `{% generation %}`, by which transformers marks the assistant's text for training, becomes `{% if true %}`;
/// - in a string, a backslash at the end of a line continues the string on the next line;
/// - every line ends with `\n`: a template that was saved on Windows must not put `\r` into prompts.
pub(super) fn for_minijinja(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut result = String::with_capacity(source.len());
    let mut rest = &source[..];
    while let Some(start) = ["{%", "{{", "{#"].into_iter().filter_map(|open| rest.find(open)).min() {
        result += &rest[..start];
        rest = &rest[start..];
        let tag = &rest[..tag_len(rest)];
        rest = &rest[tag.len()..];
        result += &match tag.trim_matches(|letter: char| "{%-+} \n".contains(letter)) {
            _ if tag.starts_with("{#") => tag.to_owned(),
            "generation" => tag.replace("generation", "if true"),
            "endgeneration" => tag.replace("endgeneration", "endif"),
            _ => with_joined_lines(tag),
        };
    }
    result + rest
}

/// Bytes of the tag or comment at the start of `text`; a string in it may contain what ends a tag.
fn tag_len(text: &str) -> usize {
    let close = match &text[..2] {
        "{#" => return text.find("#}").map_or(text.len(), |end| end + 2),
        "{%" => "%}",
        _ => "}}",
    };
    let mut quote = None;
    let mut is_escaped = false;
    for (at, letter) in text.char_indices().skip(2) {
        match quote {
            Some(_) if is_escaped => is_escaped = false,
            Some(_) if letter == '\\' => is_escaped = true,
            Some(opened) if letter == opened => quote = None,
            Some(_) => {}
            None if letter == '"' || letter == '\'' => quote = Some(letter),
            None if text[at..].starts_with(close) => return at + 2,
            None => {}
        }
    }
    text.len()
}

/// A tag without backslashes at the end of lines, which occur in strings only. Escaped backslashes stay.
fn with_joined_lines(tag: &str) -> String {
    let mut result = String::with_capacity(tag.len());
    let mut letters = tag.chars();
    while let Some(letter) = letters.next() {
        match (letter, letters.clone().next()) {
            ('\\', Some('\n')) => {
                letters.next();
            }
            ('\\', Some(escaped)) => {
                letters.next();
                result.extend([letter, escaped]);
            }
            _ => result.push(letter),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_is_a_block_that_is_always_rendered() {
        assert_eq!(for_minijinja("a{%- generation -%} b {%endgeneration%}"), "a{%- if true -%} b {%endif%}");
        assert_eq!(
            for_minijinja("{# {% generation %} #}{{ '{% generation %}' }}"),
            "{# {% generation %} #}{{ '{% generation %}' }}"
        );
    }

    #[test]
    fn strings_continue_behind_a_backslash() {
        assert_eq!(for_minijinja("{% set a = \"one\\\n two\\\\\n\" %}\\\n"), "{% set a = \"one two\\\\\n\" %}\\\n");
    }

    #[test]
    fn lines_end_as_in_jinja() {
        assert_eq!(for_minijinja("a\r\n{{ 'b\r\nc' }}\rd\n"), "a\n{{ 'b\nc' }}\nd\n");
    }

    #[test]
    fn a_tag_without_an_end_stays() {
        assert_eq!(for_minijinja("a {% if 'x"), "a {% if 'x");
        assert_eq!(for_minijinja("a {# x"), "a {# x");
        assert_eq!(for_minijinja("{{ '%}' }} {% x"), "{{ '%}' }} {% x");
    }
}
