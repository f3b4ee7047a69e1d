//! Operations that naga's WGSL lacks: functions with a name and a meaning, in `wgsl/intrinsics.wgsl`, that `unicorn_spirv` replaces
//! by instructions.

const SOURCE: &str = include_str!("wgsl/intrinsics.wgsl");

/// The names of all intrinsics. A module that still has a function with one of these names is not finished.
pub fn names() -> impl Iterator<Item = &'static str> {
    SOURCE.split("\nfn ").skip(1).filter_map(|function| function.split('(').next())
}

/// The declaration of an intrinsic, with the comment that gives its meaning; `${MATRIX}` stands for the kernel's type of
/// cooperative matrices.
///
/// `None`: there is no intrinsic of this name.
pub fn declaration(name: &str) -> Option<&'static str> {
    let start = format!("fn {name}(");
    SOURCE.split("\n\n").find(|item| item.lines().any(|line| line.starts_with(&start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_declaration_is_found_and_names_its_instruction() {
        assert!(names().count() >= 8);
        for name in names() {
            let declaration = declaration(name).expect("declared");
            assert!(declaration.lines().any(|line| line.starts_with("// ") && line.contains("Op")), "{declaration}");
        }
    }
}
