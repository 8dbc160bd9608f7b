//! What pandas left of its types in a table: it writes NaN of numpy's floats as null, so that there a null may be either.

use arrow_schema::Schema;

use crate::wire::json::{Cursor, Kind, Stop};

/// Key of the schema's metadata.
pub const KEY: &str = "pandas";

/// Bytes of the metadata that are looked at.
const LONGEST: usize = 16 << 20;

/// The columns of which nobody knows whether a null was NaN, by the schema's own metadata.
pub fn float_columns(schema: &Schema) -> Vec<String> {
    let Some(json) = schema.metadata.get(KEY).filter(|json| json.len() <= LONGEST) else { return Vec::new() };
    let mut found = Vec::new();
    // What stands before damage counts.
    let _ = columns(json.as_bytes(), &mut found);
    found
}

fn columns(json: &[u8], found: &mut Vec<String>) -> Result<(), Stop> {
    let mut cursor = Cursor::with_end(json, true);
    cursor.enter_object()?;
    while let Some(key) = cursor.next_key()? {
        if !key.is("columns") {
            cursor.skip_value()?;
            continue;
        }
        cursor.enter_array()?;
        while cursor.next_item()? {
            cursor.enter_object()?;
            let (mut name, mut field, mut is_float) = (None, None, false);
            while let Some(key) = cursor.next_key()? {
                if !matches!(cursor.kind()?, Kind::String) {
                    cursor.skip_value()?;
                    continue;
                }
                let mut text = String::new();
                cursor.string()?.decode(&mut text);
                if key.is("name") {
                    name = Some(text);
                } else if key.is("field_name") {
                    field = Some(text);
                } else if key.is("numpy_type") {
                    // `Float64` and `double[pyarrow]` tell null and NaN apart.
                    is_float = matches!(text.as_str(), "float16" | "float32" | "float64");
                }
            }
            if let (true, Some(name)) = (is_float, field.or(name)) {
                found.push(name);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn found(json: &str) -> Vec<String> {
        let metadata = HashMap::from([(KEY.to_owned(), json.to_owned())]);
        float_columns(&Schema::new_with_metadata(Vec::<arrow_schema::Field>::new(), metadata))
    }

    #[test]
    fn floats_of_numpy_are_told_from_nullable_ones() {
        let json = r#"{"index_columns": [{"kind": "range"}], "column_indexes": [{"name": null}], "columns": [
            {"name": "loss", "field_name": "loss", "pandas_type": "float64", "numpy_type": "float64", "metadata": null},
            {"name": null, "field_name": "__index_level_0__", "pandas_type": "float32", "numpy_type": "float32"},
            {"name": "step", "field_name": "step", "pandas_type": "int64", "numpy_type": "int64", "metadata": null},
            {"name": "a", "field_name": "a", "pandas_type": "float64", "numpy_type": "Float64", "metadata": null},
            {"name": "b", "field_name": "b", "pandas_type": "float64", "numpy_type": "double[pyarrow]"},
            {"name": "grad_norm", "pandas_type": "float16", "numpy_type": "float16"}], "pandas_version": "2.3.3"}"#;
        assert_eq!(found(json), ["loss", "__index_level_0__", "grad_norm"]);
        assert_eq!(found(&json[..json.len() / 2]), ["loss", "__index_level_0__"]);
        assert_eq!(found("[]"), [""; 0]);
    }
}
