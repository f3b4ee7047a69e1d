//! A config.json, read field by field.

use serde_json::Value;

pub struct Config<'a>(pub &'a Value);

impl Config<'_> {
    /// A number above 0.
    pub fn size(&self, key: &str) -> Result<u32, String> {
        let size = self.0[key].as_u64().and_then(|size| u32::try_from(size).ok());
        size.filter(|&size| size > 0).ok_or(format!("{key} is missing or no size"))
    }

    pub fn decimal(&self, key: &str) -> Result<f32, String> {
        self.0[key].as_f64().map(|number| number as f32).ok_or(format!("{key} is missing or no number"))
    }

    /// A number for each layer.
    pub fn decimals(&self, key: &str) -> Result<Vec<f32>, String> {
        let (layers, numbers) = (self.size("num_hidden_layers")?, self.0[key].as_array());
        let numbers = numbers.filter(|numbers| numbers.len() == layers as usize);
        let numbers = numbers.and_then(|numbers| numbers.iter().map(|number| Some(number.as_f64()? as f32)).collect());
        numbers.ok_or(format!("{key} is no list of {layers} numbers"))
    }

    /// The fields of the object at `key`.
    pub fn at(&self, key: &str) -> Config<'_> {
        Config(&self.0[key])
    }

    /// Whether each layer attends to all tokens, by `layer_types`; without them, the last layer of each `period` does.
    pub fn attends_to_all(&self, period: u32) -> Result<Vec<bool>, String> {
        let layers = self.size("num_hidden_layers")?;
        let Some(kinds) = self.0["layer_types"].as_array() else {
            return Ok((1..=layers).map(|layer| layer.is_multiple_of(period)).collect());
        };
        if kinds.len() != layers as usize {
            return Err(format!("layer_types must have {layers} elements, found {}", kinds.len()));
        }
        Ok(kinds.iter().map(|kind| kind == "full_attention").collect())
    }
}
