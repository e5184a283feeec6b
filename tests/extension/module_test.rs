// SPDX-License-Identifier: BSD-3-Clause
// In: counter.pte, its data file, rows.pte. Out: a line with the error of each invalid call. A failed assertion ends the program.
use torchette::{Module, Result, Tensor, Value};

fn print_error<T>(what: &str, result: Result<T>) {
    println!("{what}: {}", result.err().map_or("nothing".into(), |error| error.to_string()));
}

fn main() -> Result<()> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    let numbers = [-1.0f32, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0];
    let x = Value::tensor(&numbers, &[2, 4])?;
    print_error("file", Module::open("none.pte"));
    print_error("zero", Module::open("a\0b"));
    print_error("bytes", Module::from_bytes(&[0; 100]));
    print_error("shape", Value::tensor(&numbers, &[3, 3]));
    print_error("overflow", Value::tensor(&numbers, &[usize::MAX, 2]));
    print_error("rank", Value::tensor(&numbers[..1], &[1; 17]));

    let mut module = Module::open(&paths[0])?;
    print_error("data", module.add_data_file("none.ptd"));
    print_error("threads", module.set_num_threads(0));
    module.set_num_threads(1)?;
    module.add_data_file(&paths[1])?;
    assert_eq!(module.methods(), ["forward"]);
    assert_eq!(format!("{:?}", module.inputs("forward")?), "[Tensor(Tensor([2, 4], dtype 6))]");
    if let Value::Tensor(info) = module.inputs("forward")?[0] {
        print_error("memory", info.data::<f32>());
    }
    print_error("method", module.load("backward"));
    print_error("count", module.execute("forward", &[]).map(|_| ()));
    print_error("kind", module.execute("forward", &[Value::Int(3)]).map(|_| ()));
    module.execute("forward", &[x])?;
    module.reset("forward")?;
    print_error("none", module.execute("forward", &[Value::None]).map(|_| ())); // must not read the memory of the last input
    print_error("dtype", module.execute("forward", &[Value::tensor(&[0i32; 8], &[2, 4])?]).map(|_| ()));
    print_error("sizes", module.execute("forward", &[Value::tensor(&numbers, &[4, 2])?]).map(|_| ()));
    let half = Value::Tensor(Tensor::of_dtype(&[0u16; 8], &[2, 4], 5)?);
    print_error("half", module.execute("forward", &[half]).map(|_| ()));

    for count in [6.0, 7.0] {
        let outputs = module.execute("forward", &[x])?;
        let last = outputs.len() - 1;
        assert_eq!(outputs.tensor(last)?.data::<f32>()?, [count]);
        print_error("index", outputs.get(99));
        print_error("type", outputs.tensor(last)?.data::<i64>());
    }
    module.reset("forward")?;
    let outputs = module.execute("forward", &[x])?;
    assert_eq!(outputs.tensor(outputs.len() - 1)?.to_vec::<f32>()?, [6.0]);
    println!("scores: {:?}", outputs.tensor(outputs.len() - 2)?.data::<f32>()?);
    print_error("tensor", outputs.get(0).and_then(|_| outputs.tensor(50)));

    let mut rows = Module::from_bytes(&std::fs::read(&paths[2]).unwrap())?;
    let x = Value::tensor(&numbers, &[1, 2, 2, 2])?;
    let outputs = rows.execute("forward", &[x, Value::Int(3)])?;
    print_error("order", outputs.tensor(0)?.data::<f32>());
    assert_eq!(outputs.tensor(0)?.to_vec::<f32>()?, numbers);
    assert!(matches!(outputs.get(1)?, Value::Int(3)));
    print_error("no tensor", outputs.tensor(1));
    print_error("fixed", rows.execute("forward", &[x, Value::Int(4)]).map(|_| ()));
    let moved = std::thread::spawn(move || rows.execute("forward", &[Value::None]).map(|_| ())); // a module may move to another thread
    print_error("moved", moved.join().unwrap());
    Ok(())
}
