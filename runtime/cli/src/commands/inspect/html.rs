//! An inspection as one HTML page that needs no other file and no network. The page draws what `--json` prints; its source is
//! the folder `page`.

use super::Inspection;

/// The document, with empty places for styles, script and data.
const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/style.css");
/// Scripts of the page, in the order in which they run.
const SCRIPTS: [&str; 10] = [
    include_str!("page/format.js"),
    include_str!("page/fit.js"),
    include_str!("page/memory.js"),
    include_str!("page/speed.js"),
    include_str!("page/errors.js"),
    include_str!("page/step.js"),
    include_str!("page/queues.js"),
    include_str!("page/map.js"),
    include_str!("page/tables.js"),
    include_str!("page/main.js"),
];
/// Placeholder of the data.
const DATA: &str = "{{inspection}}";

impl Inspection<'_> {
    pub(super) fn html(&self) -> String {
        with_data(&serde_json::to_string(self).expect("an inspection is plain data with text keys"))
    }
}

/// The page without data.
fn page() -> String {
    PAGE.replace("{{style}}", STYLE).replace("{{script}}", &SCRIPTS.join("\n"))
}

/// JSON inside of a script element: without `<`, no name in it can end the element.
fn with_data(json: &str) -> String {
    page().replace(DATA, &json.replace('<', "\\u003c"))
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
    fn names_become_text_and_never_markup() {
        for markup in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"] {
            assert!(!page().contains(markup), "the page has {markup}");
        }
    }

    #[test]
    fn the_page_requests_no_other_resource() {
        for reference in ["http:", "https:", "src=", "@import", "url(", "href=", "fetch("] {
            assert!(!page().contains(reference), "the page has {reference}");
        }
        assert!(PAGE.contains("default-src 'none'"));
        assert_eq!(page().matches(DATA).count(), 1);
    }
}
