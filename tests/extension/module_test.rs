// SPDX-License-Identifier: BSD-3-Clause
// In: counter.pte, its data file, rows.pte. Out: a line with the error of each invalid call. A failed assertion ends the program.
use torchette::{Module, Result, Tensor, Value};

fn said<T>(what: &str, result: Result<T>) {
    println!("{what}: {}", result.err().map_or("nothing".into(), |error| error.to_string()));
}

fn main() -> Result<()> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    let numbers = [-1.0f32, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0];
    let x = Value::tensor(&numbers, &[2, 4])?;
    said("file", Module::open("none.pte"));
    said("zero", Module::open("a\0b"));
    said("bytes", Module::from_bytes(&[0; 100]));
    said("shape", Value::tensor(&numbers, &[3, 3]));
    said("overflow", Value::tensor(&numbers, &[usize::MAX, 2]));
    said("rank", Value::tensor(&numbers[..1], &[1; 17]));

    let mut module = Module::open(&paths[0])?;
    said("data", module.add_data_file("none.ptd"));
    said("threads", module.set_num_threads(0));
    module.set_num_threads(1)?;
    module.add_data_file(&paths[1])?;
    assert_eq!(module.methods(), ["forward"]);
    assert_eq!(format!("{:?}", module.inputs("forward")?), "[Tensor(Tensor([2, 4], dtype 6))]");
    if let Value::Tensor(info) = module.inputs("forward")?[0] {
        said("memory", info.data::<f32>());
    }
    said("method", module.load("backward"));
    said("count", module.execute("forward", &[]).map(|_| ()));
    said("kind", module.execute("forward", &[Value::Int(3)]).map(|_| ()));
    module.execute("forward", &[x])?;
    module.reset("forward")?;
    said("none", module.execute("forward", &[Value::None]).map(|_| ())); // must not read the memory of the last input
    said("dtype", module.execute("forward", &[Value::tensor(&[0i32; 8], &[2, 4])?]).map(|_| ()));
    said("sizes", module.execute("forward", &[Value::tensor(&numbers, &[4, 2])?]).map(|_| ()));
    let half = Value::Tensor(Tensor::of_dtype(&[0u16; 8], &[2, 4], 5)?);
    said("half", module.execute("forward", &[half]).map(|_| ()));

    for count in [6.0, 7.0] {
        let outputs = module.execute("forward", &[x])?;
        let last = outputs.len() - 1;
        assert_eq!(outputs.tensor(last)?.data::<f32>()?, [count]);
        said("index", outputs.get(99));
        said("type", outputs.tensor(last)?.data::<i64>());
    }
    module.reset("forward")?;
    let outputs = module.execute("forward", &[x])?;
    assert_eq!(outputs.tensor(outputs.len() - 1)?.to_vec::<f32>()?, [6.0]);
    println!("scores: {:?}", outputs.tensor(outputs.len() - 2)?.data::<f32>()?);
    said("tensor", outputs.get(0).and_then(|_| outputs.tensor(50)));

    let mut rows = Module::from_bytes(&std::fs::read(&paths[2]).unwrap())?;
    let x = Value::tensor(&numbers, &[1, 2, 2, 2])?;
    let outputs = rows.execute("forward", &[x, Value::Int(3)])?;
    said("order", outputs.tensor(0)?.data::<f32>());
    assert_eq!(outputs.tensor(0)?.to_vec::<f32>()?, numbers);
    assert!(matches!(outputs.get(1)?, Value::Int(3)));
    said("no tensor", outputs.tensor(1));
    said("fixed", rows.execute("forward", &[x, Value::Int(4)]).map(|_| ()));
    let moved = std::thread::spawn(move || rows.execute("forward", &[Value::None]).map(|_| ())); // a module may move to another thread
    said("moved", moved.join().unwrap());
    Ok(())
}
