//! An inspection as one HTML page that needs no other file and no network. The page draws what `--json` prints.

use super::Inspection;

/// Styles, script and an empty place for the data.
const PAGE: &str = include_str!("page.html");
/// Where the data goes.
const DATA: &str = "{{inspection}}";

impl Inspection<'_> {
    pub(super) fn html(&self) -> String {
        with_data(&serde_json::to_string(self).expect("an inspection is plain data with text keys"))
    }
}

/// JSON inside of a script element: without `<`, no name in it can end the element.
fn with_data(json: &str) -> String {
    PAGE.replace(DATA, &json.replace('<', "\\u003c"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_can_leave_the_data() {
        let page = with_data(r#"{"name":"</script><script>alert(1)</script>"}"#);
        assert_eq!(page.matches("</script>").count(), PAGE.matches("</script>").count());
        assert!(page.contains(r"\u003c/script>\u003cscript>alert(1)"));
    }

    #[test]
    fn the_page_asks_for_nothing_from_elsewhere() {
        for reference in ["http:", "https:", "src=", "@import", "url(", "href="] {
            assert!(!PAGE.contains(reference), "the page has {reference}");
        }
        assert!(PAGE.contains("default-src 'none'"));
        assert_eq!(PAGE.matches(DATA).count(), 1);
    }
}
