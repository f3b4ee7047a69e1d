//! Operations in MLIR itself, through melior.

use std::collections::BTreeMap;

use melior::Context;
use melior::dialect::DialectRegistry;
use melior::ir::attribute::StringAttribute;
use melior::ir::operation::{OperationBuilder, OperationPrintingFlags};
use melior::ir::{
    Attribute, Block as MlirBlock, BlockLike, Identifier, Location, Module as MlirModule, Operation,
    Region as MlirRegion, RegionLike, Type, Value as MlirValue,
};
use melior::utility::{register_all_dialects, register_all_llvm_translations, register_all_passes};
use thiserror::Error;

use super::legalised::labels;
use super::op::{Module, Op, Region};

/// Operations that MLIR refuses. Each is an error in this crate.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MlirError {
    /// A text that is not an attribute or type.
    #[error("MLIR refuses {what} of {op}: {text}")]
    Text {
        /// Attribute or type.
        what: &'static str,
        /// Operation.
        op: String,
        /// The text.
        text: String,
    },
    /// An operation that cannot be built.
    #[error("MLIR refuses {op}: {reason}")]
    Operation {
        /// Name of the operation.
        op: String,
        /// Reason of the failure.
        reason: String,
    },
    /// A module that its verifier refuses.
    #[error("MLIR's verifier refuses the module; its reason is on stderr")]
    Verify,
}

/// A context with all dialects of MLIR, which also accepts operations of mlir-aie's dialects without checking them.
pub fn context() -> Context {
    register_all_passes();
    let registry = DialectRegistry::new();
    register_all_dialects(&registry);
    let context = Context::new();
    context.append_dialect_registry(&registry);
    context.load_all_available_dialects();
    register_all_llvm_translations(&context);
    context.set_allow_unregistered_dialects(true);
    context
}

/// The module in MLIR, verified.
///
/// # Errors
/// See [`MlirError`].
pub fn generic<'c>(context: &'c Context, module: &Module) -> Result<MlirModule<'c>, MlirError> {
    // MLIR finds no symbol through operations of dialects that it does not have, so the verifier gets the module without calls.
    let mut checked = module.clone();
    remove_calls(&mut checked.ops);
    if !build(context, &checked)?.as_operation().verify() {
        return Err(MlirError::Verify);
    }
    build(context, module)
}

fn remove_calls(ops: &mut Vec<Op>) {
    ops.retain(|op| op.name != "func.call");
    ops.iter_mut().flat_map(|op| &mut op.regions).for_each(|region| remove_calls(&mut region.ops));
}

fn build<'c>(context: &'c Context, module: &Module) -> Result<MlirModule<'c>, MlirError> {
    let location = Location::unknown(context);
    let built = MlirModule::new(location);
    let builder = Builder { context, module };
    for op in &module.ops {
        let operation = builder.operation(op, &BTreeMap::new())?;
        built.body().append_operation(operation);
    }
    Ok(built)
}

/// The module in MLIR's generic form, which every version of mlir-aie with these operations reads.
///
/// # Errors
/// See [`MlirError`].
pub fn generic_text(module: &Module) -> Result<String, MlirError> {
    let context = context();
    let built = generic(&context, module)?;
    let flags = OperationPrintingFlags::new().print_generic_operation_form();
    let text = built.as_operation().to_string_with_flags(flags);
    let text = text.map_err(|error| MlirError::Operation { op: "builtin.module".into(), reason: error.to_string() })?;
    // MLIR keeps no comments.
    Ok(labels(module).into_iter().map(|label| label + "\n").collect::<String>() + &text)
}

struct Builder<'c, 'm> {
    context: &'c Context,
    module: &'m Module,
}

/// Values that a region can use: its own and those of the regions around it.
type Visible<'c, 'a> = BTreeMap<usize, MlirValue<'c, 'a>>;

impl<'c> Builder<'c, '_> {
    fn ty(&self, op: &str, text: &str) -> Result<Type<'c>, MlirError> {
        let error = || MlirError::Text { what: "type", op: op.to_owned(), text: text.to_owned() };
        Type::parse(self.context, text).ok_or_else(error)
    }

    fn attribute(&self, op: &str, text: &str) -> Result<Attribute<'c>, MlirError> {
        let error = || MlirError::Text { what: "attribute", op: op.to_owned(), text: text.to_owned() };
        if let Some(text) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
            return Ok(StringAttribute::new(self.context, text).into());
        }
        Attribute::parse(self.context, text).ok_or_else(error)
    }

    fn operation(&self, op: &Op, visible: &Visible<'c, '_>) -> Result<Operation<'c>, MlirError> {
        let location = Location::unknown(self.context);
        let mut attributes = Vec::new();
        for (name, text) in &op.attributes {
            attributes.push((Identifier::new(self.context, name), self.attribute(op.name, text)?));
        }
        let mut types = Vec::new();
        for result in &op.results {
            types.push(self.ty(op.name, self.module.ty(*result))?);
        }
        let operands: Vec<MlirValue> = op.operands.iter().map(|value| visible[&value.0]).collect();
        let mut regions = Vec::new();
        for region in &op.regions {
            regions.push(self.region(op.name, region, visible)?);
        }
        let built = OperationBuilder::new(op.name, location)
            .add_attributes(&attributes)
            .add_operands(&operands)
            .add_results(&types)
            .add_regions_vec(regions)
            .build()
            .map_err(|error| MlirError::Operation { op: op.name.to_owned(), reason: error.to_string() })?;
        Ok(built)
    }

    fn region(&self, op: &str, region: &Region, around: &Visible<'c, '_>) -> Result<MlirRegion<'c>, MlirError> {
        let built = MlirRegion::new();
        // A declaration has no block.
        if region.ops.is_empty() {
            return Ok(built);
        }
        let mut arguments = Vec::new();
        for argument in &region.arguments {
            arguments.push((self.ty(op, self.module.ty(*argument))?, Location::unknown(self.context)));
        }
        let block = built.append_block(MlirBlock::new(&arguments));
        let mut visible: Visible = around.clone();
        for (index, argument) in region.arguments.iter().enumerate() {
            let value = block.argument(index).expect("the block has this argument");
            visible.insert(argument.0, value.into());
        }
        for op in &region.ops {
            let operation = self.operation(op, &visible)?;
            let operation = block.append_operation(operation);
            for (index, result) in op.results.iter().enumerate() {
                let value = operation.result(index).expect("the operation has this result");
                visible.insert(result.0, value.into());
            }
        }
        drop(visible);
        Ok(built)
    }
}
