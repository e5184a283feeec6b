// SPDX-License-Identifier: BSD-3-Clause
// In: digits.pte and an image of 8 x 8 floats. Out: its digit and the probability.
use std::error::Error;
use torchette::{Module, Value};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let bytes = std::fs::read(&arguments[2])?;
    let picture: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let mut module = Module::open(&arguments[1])?;
    let outputs = module.execute("forward", &[Value::tensor(&picture, &[1, 64])?])?;
    let scores: &[f32] = outputs.tensor(0)?.data()?; // the module's own memory
    let best = (0..scores.len()).fold(0, |best, digit| if scores[digit] > scores[best] { digit } else { best });
    println!("{best} {:.4}", scores[best]);
    Ok(())
}
