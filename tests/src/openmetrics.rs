//! A strict reader of OpenMetrics' text format, written from its specification: it refuses all that a scraper may refuse.

use std::collections::{BTreeMap, BTreeSet};

/// A name with its labels, by their names.
pub type Series = (String, BTreeMap<String, String>);

/// Every series of `text` with its value.
///
/// # Errors
/// The line that breaks a rule, and the rule.
pub fn parse(text: &str) -> Result<BTreeMap<Series, f64>, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("text does not end with # EOF and a line break")?;
    let mut all = BTreeMap::new();
    let mut families = BTreeSet::new();
    let mut family = Family::default();
    for line in body.split_terminator('\n') {
        let wrong = |rule: &str| Err(format!("{line:?}: {rule}"));
        if let Some(metadata) = line.strip_prefix("# ") {
            let mut words = metadata.splitn(3, ' ');
            let (Some(key), Some(name), Some(value)) = (words.next(), words.next(), words.next()) else {
                return wrong("metadata is a key, a name and a value");
            };
            if name != family.name {
                if !families.insert(name.to_owned()) {
                    return wrong("a family is not interrupted by another");
                }
                family = Family { name: name.to_owned(), ..Family::default() };
            }
            if family.has_samples || family.metadata.insert(key.to_owned(), value.to_owned()).is_some() {
                return wrong("metadata comes once, before the samples");
            }
            let kinds = ["gauge", "counter", "stateset"];
            match key {
                "TYPE" if kinds.contains(&value) => {}
                "UNIT" if name.ends_with(&format!("_{value}")) => {}
                "HELP" => {}
                _ => return wrong("metadata is a known TYPE, a HELP, or a UNIT that the name ends with"),
            }
            continue;
        }
        let (series, value) = sample(line).map_err(|rule| format!("{line:?}: {rule}"))?;
        family.check(&series, value).map_err(|rule| format!("{line:?}: {rule}"))?;
        family.has_samples = true;
        if all.insert(series, value).is_some() {
            return wrong("a series has one value");
        }
    }
    Ok(all)
}

#[derive(Default)]
struct Family {
    name: String,
    metadata: BTreeMap<String, String>,
    has_samples: bool,
}

impl Family {
    fn check(&self, (name, labels): &Series, value: f64) -> Result<(), &'static str> {
        let kind = self.metadata.get("TYPE").ok_or("a sample belongs to a family with a TYPE")?;
        let suffix = if kind == "counter" { "_total" } else { "" };
        if name.strip_suffix(suffix) != Some(&self.name) {
            return Err("a sample is named as its family, a counter's with _total");
        }
        if kind == "counter" && value < 0.0 {
            return Err("a counter does not fall below zero");
        }
        if kind == "stateset" && !(labels.contains_key(&self.name) && (value == 0.0 || value == 1.0)) {
            return Err("a state is 0 or 1, under a label with the family's name");
        }
        Ok(())
    }
}

fn sample(line: &str) -> Result<(Series, f64), &'static str> {
    let (name, rest) = line.split_at(line.find(['{', ' ']).ok_or("a sample has a value")?);
    if !is_name(name) {
        return Err("a name is of letters, digits and underscores");
    }
    let mut labels = BTreeMap::new();
    let mut rest = match rest.strip_prefix('{') {
        None => rest,
        Some(mut rest) => loop {
            let (label, after) = rest.split_once("=\"").ok_or("a label has a value in quotes")?;
            let (value, after) = quoted(after)?;
            if !is_name(label) || labels.insert(label.to_owned(), value).is_some() {
                return Err("a label's name is one, and comes once");
            }
            match after.strip_prefix(',') {
                Some(next) => rest = next,
                None => break after.strip_prefix('}').ok_or("labels end with a brace")?,
            }
        },
    };
    rest = rest.strip_prefix(' ').ok_or("one space comes before the value")?;
    let is_number = !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    let value = rest.parse().ok().filter(|_| is_number).ok_or("a value is a number")?;
    Ok(((name.to_owned(), labels), value))
}

/// A value whose opening quote is gone, without its escapes, and what follows its closing quote.
fn quoted(text: &str) -> Result<(String, &str), &'static str> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => match letters.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, escaped @ ('\\' | '"'))) => value.push(escaped),
                _ => return Err("what is escaped is a line break, a quote or a backslash"),
            },
            _ => value.push(letter),
        }
    }
    Err("a quote is closed")
}

fn is_name(name: &str) -> bool {
    let is_first = |letter: char| letter.is_ascii_alphabetic() || letter == '_';
    name.starts_with(is_first) && name.chars().all(|letter| is_first(letter) || letter.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_format_allows_is_read() {
        let text = "# TYPE a_bytes gauge\n# UNIT a_bytes bytes\n# HELP a_bytes All of it\na_bytes 1\na_bytes{b=\"\\\"\\n}\\\\\"} 2.5\n\
            # TYPE c counter\nc_total{} 3\n# EOF\n";
        let text = text.replace("{}", "{x=\"\"}");
        let found: Vec<f64> = parse(&text).unwrap().into_values().collect();
        assert_eq!(found, [1.0, 2.5, 3.0]);
        assert!(parse(&text).unwrap().keys().any(|(_, labels)| labels.get("b").is_some_and(|b| b == "\"\n}\\")));
    }

    #[test]
    fn what_it_forbids_is_refused() {
        for text in [
            "",
            "# EOF",
            "a 1\n# EOF\n",
            "# TYPE a gauge\na  1\n# EOF\n",
            "# TYPE a gauge\na NaN\n# EOF\n",
            "# TYPE a gauge\na{b=\"c} 1\n# EOF\n",
            "# TYPE a gauge\na{b=\"\\t\"} 1\n# EOF\n",
            "# TYPE a gauge\na 1\na 1\n# EOF\n",
            "# TYPE a gauge\na 1\n# HELP a Late\n# EOF\n",
            "# TYPE a gauge\n# TYPE b gauge\n# TYPE a gauge\n# EOF\n",
            "# TYPE a gauge\n# UNIT a bytes\n# EOF\n",
            "# TYPE a counter\na 1\n# EOF\n",
            "# TYPE a counter\na_total -1\n# EOF\n",
            "# TYPE a stateset\na{b=\"c\"} 1\n# EOF\n",
            "# TYPE a gauge\n\na 1\n# EOF\n",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
