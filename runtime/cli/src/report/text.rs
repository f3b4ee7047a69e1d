//! Text from files in a form that is safe on a terminal.

pub use unicorn_artifact::printable::{printable, printable_lines};

/// `q_proj` of `12.q_proj`: a dispatch's label begins with its layer, if it has one.
pub fn role(label: &str) -> &str {
    match label.split_once('.') {
        Some((layer, role)) if !layer.is_empty() && layer.bytes().all(|byte| byte.is_ascii_digit()) => role,
        _ => label,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_a_label_without_its_layer() {
        assert_eq!(["12.q_proj", "lm_head", "a.b", ".b"].map(role), ["q_proj", "lm_head", "a.b", ".b"]);
    }
}
