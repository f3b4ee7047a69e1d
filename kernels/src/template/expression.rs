//! Constant expressions of templates.
//!
//! ```text
//! a || b   a && b   == != < <= > >=   + -   * / %   !a -a   text[index]
//! 12   "text"   NAME   (a)   min(a, b)   max(a, b)   div_ceil(a, b)   pow(a, b)
//! ```

use std::fmt;

/// Value of a constant expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Number(i64),
    Flag(bool),
    Text(String),
}

impl Value {
    pub fn number(self) -> Result<i64, String> {
        if let Value::Number(number) = self { Ok(number) } else { Err(format!("expected a number, found {self:?}")) }
    }

    pub fn flag(self) -> Result<bool, String> {
        if let Value::Flag(flag) = self { Ok(flag) } else { Err(format!("expected a flag, found {self:?}")) }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Value::Number(number) => number.fmt(f),
            Value::Flag(flag) => flag.fmt(f),
            Value::Text(text) => text.fmt(f),
        }
    }
}

/// The value of the expression `text`; `value_of` looks names up.
pub(super) fn evaluate(text: &str, value_of: &dyn Fn(&str) -> Option<Value>) -> Result<Value, String> {
    let mut values = evaluate_list(text, value_of)?;
    match (values.pop(), values.pop()) {
        (Some(value), None) => Ok(value),
        _ => Err(format!("expected one expression, found `{text}`")),
    }
}

/// The values of expressions separated by commas.
pub(super) fn evaluate_list(text: &str, value_of: &dyn Fn(&str) -> Option<Value>) -> Result<Vec<Value>, String> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0, value_of };
    let values = parser.list()?;
    match parser.peek() {
        None => Ok(values),
        Some(token) => Err(format!("unexpected `{token}`")),
    }
}

/// A name, a number, a text with its quotation marks, or an operator.
fn tokens(text: &str) -> Result<Vec<&str>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let len = if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else if first == '"' {
            2 + rest[1..].find('"').ok_or("a text without its closing quotation mark")?
        } else if ["||", "&&", "==", "!=", "<=", ">="].iter().any(|operator| rest.starts_with(operator)) {
            2
        } else if "<>+-*/%!()[],".contains(first) {
            1
        } else {
            return Err(format!("unexpected `{first}`"));
        };
        tokens.push(&rest[..len]);
        rest = rest[len..].trim_start();
    }
    Ok(tokens)
}

struct Parser<'a> {
    tokens: Vec<&'a str>,
    at: usize,
    value_of: &'a dyn Fn(&str) -> Option<Value>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.tokens.get(self.at).copied()
    }

    /// Takes the next token if it is one of these.
    fn take(&mut self, wanted: &[&str]) -> Option<&'a str> {
        let token = self.peek().filter(|token| wanted.contains(token))?;
        self.at += 1;
        Some(token)
    }

    fn expect(&mut self, wanted: &str) -> Result<(), String> {
        self.take(&[wanted]).map(|_| ()).ok_or_else(|| format!("expected `{wanted}`, found {:?}", self.peek()))
    }

    fn list(&mut self) -> Result<Vec<Value>, String> {
        let mut values = vec![self.any()?];
        while self.take(&[","]).is_some() {
            values.push(self.any()?);
        }
        Ok(values)
    }

    fn any(&mut self) -> Result<Value, String> {
        let mut left = self.all()?;
        while self.take(&["||"]).is_some() {
            let right = self.all()?.flag()?;
            left = Value::Flag(left.flag()? || right);
        }
        Ok(left)
    }

    fn all(&mut self) -> Result<Value, String> {
        let mut left = self.comparison()?;
        while self.take(&["&&"]).is_some() {
            let right = self.comparison()?.flag()?;
            left = Value::Flag(left.flag()? && right);
        }
        Ok(left)
    }

    fn comparison(&mut self) -> Result<Value, String> {
        let left = self.sum()?;
        let Some(operator) = self.take(&["==", "!=", "<", "<=", ">", ">="]) else { return Ok(left) };
        let right = self.sum()?;
        if std::mem::discriminant(&left) != std::mem::discriminant(&right) {
            return Err(format!("cannot compare {left:?} with {right:?}"));
        }
        let holds = match operator {
            "==" => left == right,
            "!=" => left != right,
            "<" => left.number()? < right.number()?,
            "<=" => left.number()? <= right.number()?,
            ">" => left.number()? > right.number()?,
            _ => left.number()? >= right.number()?,
        };
        Ok(Value::Flag(holds))
    }

    fn sum(&mut self) -> Result<Value, String> {
        let mut left = self.product()?;
        while let Some(operator) = self.take(&["+", "-"]) {
            left = arithmetic(left, operator, self.product()?)?;
        }
        Ok(left)
    }

    fn product(&mut self) -> Result<Value, String> {
        let mut left = self.unary()?;
        while let Some(operator) = self.take(&["*", "/", "%"]) {
            left = arithmetic(left, operator, self.unary()?)?;
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Value, String> {
        match self.take(&["!", "-"]) {
            Some("!") => Ok(Value::Flag(!self.unary()?.flag()?)),
            Some(_) => Ok(Value::Number(-self.unary()?.number()?)),
            None => self.indexed(),
        }
    }

    fn indexed(&mut self) -> Result<Value, String> {
        let value = self.single()?;
        if self.take(&["["]).is_none() {
            return Ok(value);
        }
        let index = self.any()?.number()?;
        self.expect("]")?;
        let Value::Text(text) = value else { return Err(format!("expected a text to index, found {value:?}")) };
        let letter = usize::try_from(index).ok().and_then(|index| text.chars().nth(index));
        letter.map(|letter| Value::Text(letter.into())).ok_or_else(|| format!("no letter {index} in `{text}`"))
    }

    fn single(&mut self) -> Result<Value, String> {
        let token = self.peek().ok_or("expected an expression, found nothing")?;
        self.at += 1;
        if token == "(" {
            let value = self.any()?;
            self.expect(")")?;
            return Ok(value);
        }
        if let Some(text) = token.strip_prefix('"') {
            return Ok(Value::Text(text.trim_end_matches('"').into()));
        }
        if token.starts_with(|c: char| c.is_ascii_digit()) {
            return token.parse().map(Value::Number).map_err(|_| format!("expected a number, found `{token}`"));
        }
        if self.take(&["("]).is_some() {
            let arguments = self.list()?;
            self.expect(")")?;
            return call(token, arguments);
        }
        (self.value_of)(token).ok_or_else(|| format!("unknown name `{token}`"))
    }
}

fn arithmetic(left: Value, operator: &str, right: Value) -> Result<Value, String> {
    let (left, right) = (left.number()?, right.number()?);
    let result = match operator {
        "+" => left.checked_add(right),
        "-" => left.checked_sub(right),
        "*" => left.checked_mul(right),
        "/" => left.checked_div(right),
        _ => left.checked_rem(right),
    };
    result.map(Value::Number).ok_or_else(|| format!("{left} {operator} {right} has no value"))
}

fn call(function: &str, arguments: Vec<Value>) -> Result<Value, String> {
    let numbers: Vec<i64> = arguments.into_iter().map(Value::number).collect::<Result<_, _>>()?;
    let [a, b] = numbers[..] else { return Err(format!("`{function}` takes two numbers, found {}", numbers.len())) };
    match function {
        "min" => Ok(Value::Number(a.min(b))),
        "max" => Ok(Value::Number(a.max(b))),
        "div_ceil" if a >= 0 && b > 0 => Ok(Value::Number((a + b - 1) / b)),
        "pow" => {
            let power = u32::try_from(b).ok().and_then(|b| a.checked_pow(b));
            power.map(Value::Number).ok_or_else(|| format!("pow({a}, {b}) has no value"))
        }
        _ => Err(format!("unknown function `{function}` of {a} and {b}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Value, String> {
        evaluate(text, &|name| match name {
            "N" => Some(Value::Number(8)),
            "on" => Some(Value::Flag(true)),
            "kind" => Some(Value::Text("int8".into())),
            _ => None,
        })
    }

    #[test]
    fn operators_bind_as_in_rust() {
        for (text, expected) in [
            ("1 + 2 * N - 3", 14),
            ("(1 + 2) * N % 5", 4),
            ("-N / 2", -4),
            ("min(N, 3) + max(1, 2)", 5),
            ("div_ceil(N + 1, 4)", 3),
            ("N / pow(2, 2)", 2),
        ] {
            assert_eq!(of(text), Ok(Value::Number(expected)), "{text}");
        }
        for (text, expected) in [
            ("N - 1 < 7 || on", true),
            ("!on && N == 8", false),
            ("kind == \"int8\"", true),
            ("!(N >= 9)", true),
            ("kind != \"int4\" && on", true),
        ] {
            assert_eq!(of(text), Ok(Value::Flag(expected)), "{text}");
        }
        assert_eq!(of("\"xyzw\"[N - 6]"), Ok(Value::Text("z".into())));
    }

    #[test]
    fn what_has_no_value_is_an_error() {
        for text in
            ["M", "N +", "N N", "N / 0", "on + 1", "N == on", "\"xy\"[2]", "sum(1, 2)", "(N", "", "1, 2", "a ? b"]
        {
            assert!(of(text).is_err(), "{text}");
        }
        assert_eq!(of("N + M"), Err("unknown name `M`".into()));
    }
}
