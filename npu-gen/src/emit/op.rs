//! Operations of MLIR as plain data, before they have one of its textual forms.

/// Index into [`Module::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value(pub usize);

/// Name and type of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueInfo {
    /// Name, unique in the module, without `%`.
    pub name: String,
    /// Type in MLIR's syntax.
    pub ty: String,
}

/// One operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Op {
    /// Name with its dialect.
    pub name: &'static str,
    /// Operands.
    pub operands: Vec<Value>,
    /// Results.
    pub results: Vec<Value>,
    /// Name and text of each attribute.
    pub attributes: Vec<(&'static str, String)>,
    /// Its bodies; each is one block, or none for a declaration.
    pub regions: Vec<Region>,
}

/// One block of operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Arguments of the block.
    pub arguments: Vec<Value>,
    /// Operations in order.
    pub ops: Vec<Op>,
}

impl Op {
    /// Text of an attribute; empty if it is absent.
    pub fn attribute(&self, name: &str) -> &str {
        self.attributes.iter().find(|(found, _)| *found == name).map_or("", |(_, text)| text)
    }
}

/// A module that is being built: all of its values, and the operations outside of regions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// All values.
    pub values: Vec<ValueInfo>,
    /// Operations in order.
    pub ops: Vec<Op>,
}

impl Module {
    /// A new value.
    pub fn value(&mut self, name: &str, ty: impl Into<String>) -> Value {
        let taken = |name: &str| self.values.iter().rev().any(|info| info.name == name);
        let index = self.values.len();
        let name = if name.is_empty() || taken(name) { format!("{name}{index}") } else { name.to_owned() };
        self.values.push(ValueInfo { name, ty: ty.into() });
        Value(index)
    }

    /// Type of a value.
    pub fn ty(&self, value: Value) -> &str {
        &self.values[value.0].ty
    }
}

/// The operations of a region that is being built.
pub struct Block<'m> {
    /// The module that holds the values.
    pub module: &'m mut Module,
    /// The operations so far.
    pub ops: Vec<Op>,
}

impl Block<'_> {
    /// Adds an operation without result.
    pub fn add(&mut self, name: &'static str, operands: &[Value], attributes: Vec<(&'static str, String)>) {
        self.ops.push(Op { name, operands: operands.to_vec(), attributes, ..Op::default() });
    }

    /// Adds an operation with one result of type `ty`.
    pub fn make(
        &mut self,
        name: &'static str,
        operands: &[Value],
        attributes: Vec<(&'static str, String)>,
        ty: impl Into<String>,
    ) -> Value {
        let result = self.module.value("v", ty);
        self.ops.push(Op { name, operands: operands.to_vec(), results: vec![result], attributes, ..Op::default() });
        result
    }

    /// `arith.constant` of an index.
    pub fn index(&mut self, value: usize) -> Value {
        self.make("arith.constant", &[], vec![("value", format!("{value} : index"))], "index")
    }

    /// `arith.constant` of any type; `text` without the type.
    pub fn constant(&mut self, text: &str, ty: &str) -> Value {
        self.make("arith.constant", &[], vec![("value", format!("{text} : {ty}"))], ty)
    }

    /// `a * factor + b` of indices.
    pub fn scaled_sum(&mut self, a: Value, factor: usize, b: Value) -> Value {
        let factor = self.index(factor);
        let product = self.make("arith.muli", &[a, factor], Vec::new(), "index");
        self.make("arith.addi", &[product, b], Vec::new(), "index")
    }

    /// `sum` plus the product of two matrices, as `vector.contract`.
    pub fn contract(&mut self, a: Value, b: Value, sum: Value) -> Value {
        let maps = "[affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>]";
        let kinds =
            "[#vector.iterator_type<parallel>, #vector.iterator_type<parallel>, #vector.iterator_type<reduction>]";
        let attributes = vec![
            ("indexing_maps", maps.to_owned()),
            ("iterator_types", kinds.to_owned()),
            ("kind", "#vector.kind<add>".to_owned()),
        ];
        let ty = self.module.ty(sum).to_owned();
        self.make("vector.contract", &[a, b, sum], attributes, ty)
    }

    /// `scf.for` from 0 to `count`, carrying values; `body` gives the next ones.
    pub fn repeat(
        &mut self,
        count: usize,
        carried: &[Value],
        body: impl FnOnce(&mut Block, Value, &[Value]) -> Vec<Value>,
    ) -> Vec<Value> {
        let bounds = [self.index(0), self.index(count), self.index(1)];
        let induction = self.module.value("i", "index");
        let types: Vec<String> = carried.iter().map(|value| self.module.ty(*value).to_owned()).collect();
        let inner: Vec<Value> = types.iter().map(|ty| self.module.value("carried", ty.clone())).collect();
        let mut block = Block { module: self.module, ops: Vec::new() };
        let next = body(&mut block, induction, &inner);
        block.add("scf.yield", &next, Vec::new());
        let ops = block.ops;
        let results: Vec<Value> = types.into_iter().map(|ty| self.module.value("v", ty)).collect();
        self.ops.push(Op {
            name: "scf.for",
            operands: bounds.iter().chain(carried).copied().collect(),
            results: results.clone(),
            attributes: Vec::new(),
            regions: vec![Region { arguments: std::iter::once(induction).chain(inner).collect(), ops }],
        });
        results
    }
}
