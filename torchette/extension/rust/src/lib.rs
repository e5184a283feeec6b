// SPDX-License-Identifier: BSD-3-Clause
//! Runs `.pte` files. A wrapper of `torchette/extension/c_api.h` that depends only on the standard library.
//!
//! Inputs and outputs are not copied. An output borrows its module, so the compiler rejects code that runs or drops the
//! module while the output is in use.
//!
//! ```no_run
//! use torchette::{Module, Value};
//! let mut module = Module::open("digits.pte")?;
//! let image = [0.0f32; 64];
//! let outputs = module.execute("forward", &[Value::tensor(&image, &[1, 64])?])?;
//! let scores: &[f32] = outputs.tensor(0)?.data()?;
//! # Ok::<(), torchette::Error>(())
//! ```
use std::ffi::{c_void, CStr, CString};
use std::fmt;
use std::marker::PhantomData;
use std::os::raw::{c_char, c_int};
use std::path::Path;
use std::ptr;
use std::sync::Once;

const MAX_DIM: usize = 16;

/// The structs and functions of `c_api.h`.
mod c {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy)]
    pub struct Tensor {
        pub data: *mut c_void,
        pub nbytes: usize,
        pub dtype: i32,
        pub dim: i32,
        pub sizes: [i64; MAX_DIM],
        pub order: [u8; MAX_DIM],
    }
    #[repr(C)]
    #[derive(Clone, Copy)]
    pub struct Value {
        pub kind: i32,
        pub integer: i64,
        pub number: f64,
        pub tensor: Tensor,
    }
    pub const EMPTY: Value = Value {
        kind: 0,
        integer: 0,
        number: 0.0,
        tensor: Tensor { data: ptr::null_mut(), nbytes: 0, dtype: 0, dim: 0, sizes: [0; MAX_DIM], order: [0; MAX_DIM] },
    };
    pub enum Module {}

    extern "C" {
        pub fn torchette_error_name(error: u32) -> *const c_char;
        pub fn torchette_last_error() -> *const c_char;
        pub fn torchette_set_log(log: Option<unsafe extern "C" fn(c_char, *const c_char, usize, *const c_char)>);
        pub fn torchette_module_open(path: *const c_char, use_mmap: c_int, module: *mut *mut Module) -> u32;
        pub fn torchette_module_open_buffer(data: *const c_void, size: usize, module: *mut *mut Module) -> u32;
        pub fn torchette_module_add_data_file(module: *mut Module, path: *const c_char, use_mmap: c_int) -> u32;
        pub fn torchette_module_free(module: *mut Module);
        pub fn torchette_module_num_methods(module: *const Module) -> usize;
        pub fn torchette_module_method_name(module: *const Module, index: usize) -> *const c_char;
        pub fn torchette_module_set_num_threads(module: *mut Module, count: usize) -> u32;
        pub fn torchette_method_num_inputs(module: *mut Module, method: *const c_char, count: *mut usize) -> u32;
        pub fn torchette_method_num_outputs(module: *mut Module, method: *const c_char, count: *mut usize) -> u32;
        pub fn torchette_method_input_info(module: *mut Module, method: *const c_char, index: usize, info: *mut Value) -> u32;
        pub fn torchette_method_output_info(module: *mut Module, method: *const c_char, index: usize, info: *mut Value) -> u32;
        pub fn torchette_method_load(module: *mut Module, method: *const c_char) -> u32;
        pub fn torchette_method_reset(module: *mut Module, method: *const c_char) -> u32;
        pub fn torchette_method_execute(module: *mut Module, method: *const c_char, inputs: *const Value, count: usize) -> u32;
        pub fn torchette_method_output(module: *mut Module, method: *const c_char, index: usize, output: *mut Value) -> u32;
        pub fn torchette_tensor_copy(tensor: *const Tensor, to: *mut c_void, size: usize) -> u32;
    }
}

/// An error of the runtime: its code, its name and the log lines of the failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub code: u32,
    pub name: String,
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.message.is_empty() {
            true => write!(to, "{}", self.name),
            false => write!(to, "{}: {}", self.name, self.message),
        }
    }
}

impl std::error::Error for Error {}

pub type Result<T> = std::result::Result<T, Error>;

unsafe fn text(from: *const c_char) -> String {
    CStr::from_ptr(from).to_string_lossy().into_owned()
}

fn check(code: u32) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    unsafe { Err(Error { code, name: text(c::torchette_error_name(code)), message: text(c::torchette_last_error()) }) }
}

fn invalid(message: String) -> Error {
    Error { code: 0x12, name: "InvalidArgument".into(), message }
}

fn string(from: &str) -> Result<CString> {
    CString::new(from).map_err(|_| invalid(format!("the string {from:?} contains a zero byte")))
}

/// An element type with the code of its torch dtype.
///
/// # Safety
/// Every bit pattern must be a valid value of the type.
pub unsafe trait Element: Copy + 'static {
    const DTYPE: i32;
}
macro_rules! elements {
    ($($type:ty, $dtype:expr;)*) => { $(unsafe impl Element for $type { const DTYPE: i32 = $dtype; })* };
}
elements! { u8, 0; i8, 1; i16, 2; i32, 3; i64, 4; f32, 6; f64, 7; u16, 27; u32, 28; u64, 29; }

/// A tensor that borrows its memory for `'a`: from the caller for an input, from the module for an output.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    raw: c::Tensor,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> Tensor<'a> {
    /// Creates a tensor from elements in row-major order. Fails if `shape` does not match their number or has more than 16
    /// dimensions.
    pub fn new<T: Element>(data: &'a [T], shape: &[usize]) -> Result<Self> {
        Self::of_dtype(data, shape, T::DTYPE)
    }

    /// Creates a tensor with a dtype that Rust lacks, such as float16 (5) with elements of u16, or bool (11) with u8.
    pub fn of_dtype<T: Element>(data: &'a [T], shape: &[usize], dtype: i32) -> Result<Self> {
        let count = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        if shape.len() > MAX_DIM || count != Some(data.len()) {
            return Err(invalid(format!("{} elements do not match a tensor of shape {shape:?}", data.len())));
        }
        let mut raw = c::EMPTY.tensor;
        raw.data = data.as_ptr() as *mut c_void;
        raw.nbytes = std::mem::size_of_val(data);
        raw.dtype = dtype;
        raw.dim = shape.len() as i32;
        raw.sizes.iter_mut().zip(shape).for_each(|(to, size)| *to = *size as i64);
        Ok(Tensor { raw, memory: PhantomData })
    }

    /// Returns the code of the dtype, as in torch.
    pub fn dtype(&self) -> i32 {
        self.raw.dtype
    }

    /// Returns the sizes of the dimensions.
    pub fn shape(&self) -> Vec<usize> {
        self.raw.sizes[..self.raw.dim as usize].iter().map(|size| *size as usize).collect()
    }

    fn is_row_major(&self) -> bool {
        let order = &self.raw.order[..self.raw.dim as usize];
        order.iter().all(|d| *d == 0) || order.iter().enumerate().all(|(i, d)| i == *d as usize)
    }

    fn elements<T: Element>(&self) -> Result<&'a [T]> {
        // u16 represents the bits of float16 and bfloat16, u8 those of bool.
        let is_compatible = matches!((self.raw.dtype, T::DTYPE), (5, 27) | (15, 27) | (11, 0));
        if self.raw.dtype != T::DTYPE && !is_compatible {
            return Err(invalid(format!("the tensor has dtype {}, requested dtype {}", self.raw.dtype, T::DTYPE)));
        }
        if self.raw.nbytes == 0 {
            return Ok(&[]);
        }
        if self.raw.data.is_null() || self.raw.data as usize % std::mem::align_of::<T>() != 0 {
            return Err(invalid("the tensor's memory is null or misaligned for the element type".into()));
        }
        Ok(unsafe { std::slice::from_raw_parts(self.raw.data as *const T, self.numel()) })
    }

    /// Returns the number of elements.
    pub fn numel(&self) -> usize {
        self.shape().iter().product()
    }

    /// Returns the elements in row-major order without a copy. Fails if the tensor has another order; use `to_vec` then.
    pub fn data<T: Element>(&self) -> Result<&'a [T]> {
        if !self.is_row_major() {
            return Err(invalid(format!("the tensor has dim order {:?}: copy it with to_vec()", &self.raw.order[..self.raw.dim as usize])));
        }
        self.elements()
    }

    /// Returns a copy of the elements in row-major order.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let mut copy = self.elements::<T>()?.to_vec();
        if !self.is_row_major() {
            check(unsafe { c::torchette_tensor_copy(&self.raw, copy.as_mut_ptr() as *mut c_void, self.raw.nbytes) })?;
        }
        Ok(copy)
    }
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Tensor({:?}, dtype {})", self.shape(), self.raw.dtype)
    }
}

/// An input or output of a method.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// As an input: the method uses the value that the export has fixed.
    None,
    Tensor(Tensor<'a>),
    Int(i64),
    Double(f64),
    Bool(bool),
    /// A kind without a member in the C interface, such as a string.
    Other(i32),
}

impl<'a> Value<'a> {
    /// Creates a tensor value from elements in row-major order, as `Tensor::new` does.
    pub fn tensor<T: Element>(data: &'a [T], shape: &[usize]) -> Result<Self> {
        Ok(Value::Tensor(Tensor::new(data, shape)?))
    }

    fn from_c(from: &c::Value) -> Self {
        match from.kind {
            0 => Value::None,
            1 => Value::Tensor(Tensor { raw: from.tensor, memory: PhantomData }),
            3 => Value::Double(from.number),
            4 => Value::Int(from.integer),
            5 => Value::Bool(from.integer != 0),
            kind => Value::Other(kind),
        }
    }

    fn to_c(self) -> c::Value {
        match self {
            Value::None => c::EMPTY,
            Value::Tensor(tensor) => c::Value { kind: 1, tensor: tensor.raw, ..c::EMPTY },
            Value::Double(number) => c::Value { kind: 3, number, ..c::EMPTY },
            Value::Int(integer) => c::Value { kind: 4, integer, ..c::EMPTY },
            Value::Bool(truth) => c::Value { kind: 5, integer: truth as i64, ..c::EMPTY },
            Value::Other(kind) => c::Value { kind, ..c::EMPTY },
        }
    }
}

/// An open program. Dropping it frees its memory.
#[derive(Debug)]
pub struct Module {
    raw: *mut c::Module,
    bytes: Vec<u128>, // a program in memory, aligned to 16 bytes
}

// Only one thread at a time changes a module: methods that change it require `&mut self`.
unsafe impl Send for Module {}

impl Module {
    /// Opens a file by mapping it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = string(&path.as_ref().to_string_lossy())?;
        Self::create(Vec::new(), |module, _| unsafe { c::torchette_module_open(path.as_ptr(), 1, module) })
    }

    /// Opens a program in memory, which is copied.
    pub fn from_bytes(program: &[u8]) -> Result<Self> {
        let mut bytes = vec![0u128; (program.len() + 15) / 16];
        unsafe { ptr::copy_nonoverlapping(program.as_ptr(), bytes.as_mut_ptr() as *mut u8, program.len()) };
        let size = program.len();
        Self::create(bytes, |module, bytes| unsafe {
            c::torchette_module_open_buffer(bytes.as_ptr() as *const c_void, size, module)
        })
    }

    fn create(bytes: Vec<u128>, open: impl FnOnce(*mut *mut c::Module, &[u128]) -> u32) -> Result<Self> {
        static QUIET: Once = Once::new(); // errors are returned instead of logged
        QUIET.call_once(|| unsafe { c::torchette_set_log(None) });
        let mut raw = ptr::null_mut();
        check(open(&mut raw, &bytes))?;
        Ok(Module { raw, bytes })
    }

    /// Adds a .ptd file with weights. Fails if a method is loaded.
    pub fn add_data_file(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = string(&path.as_ref().to_string_lossy())?;
        check(unsafe { c::torchette_module_add_data_file(self.raw, path.as_ptr(), 1) })
    }

    /// Sets the number of threads of methods that are loaded after this call.
    pub fn set_num_threads(&mut self, count: usize) -> Result<()> {
        check(unsafe { c::torchette_module_set_num_threads(self.raw, count) })
    }

    /// Returns the names of the methods.
    pub fn methods(&self) -> Vec<String> {
        unsafe { (0..c::torchette_module_num_methods(self.raw)).map(|i| text(c::torchette_module_method_name(self.raw, i))).collect() }
    }

    /// Describes the inputs of a method. Tensors have no memory and their sizes are upper bounds.
    pub fn inputs(&mut self, method: &str) -> Result<Vec<Value<'_>>> {
        self.infos(method, c::torchette_method_num_inputs, c::torchette_method_input_info)
    }

    /// Describes the outputs of a method.
    pub fn outputs(&mut self, method: &str) -> Result<Vec<Value<'_>>> {
        self.infos(method, c::torchette_method_num_outputs, c::torchette_method_output_info)
    }

    fn infos(
        &mut self,
        method: &str,
        size: unsafe extern "C" fn(*mut c::Module, *const c_char, *mut usize) -> u32,
        info: unsafe extern "C" fn(*mut c::Module, *const c_char, usize, *mut c::Value) -> u32,
    ) -> Result<Vec<Value<'_>>> {
        let (name, mut count) = (string(method)?, 0);
        check(unsafe { size(self.raw, name.as_ptr(), &mut count) })?;
        (0..count)
            .map(|i| {
                let mut value = c::EMPTY;
                check(unsafe { info(self.raw, name.as_ptr(), i, &mut value) })?;
                Ok(Value::from_c(&value))
            })
            .collect()
    }

    /// Allocates memory for a method and loads it. `execute` does so if the method is not loaded.
    pub fn load(&mut self, method: &str) -> Result<()> {
        check(unsafe { c::torchette_method_load(self.raw, string(method)?.as_ptr()) })
    }

    /// Resets mutable state to the values that it had when the method was loaded.
    pub fn reset(&mut self, method: &str) -> Result<()> {
        check(unsafe { c::torchette_method_reset(self.raw, string(method)?.as_ptr()) })
    }

    /// Runs a method. `inputs` must contain a value for each input of the method. The outputs are in the module's memory
    /// and valid until they are dropped. An output that is an input of the method is in the memory of that input.
    pub fn execute<'m>(&'m mut self, method: &str, inputs: &[Value<'m>]) -> Result<Outputs<'m>> {
        let name = string(method)?;
        let values: Vec<c::Value> = inputs.iter().map(|value| value.to_c()).collect();
        check(unsafe { c::torchette_method_execute(self.raw, name.as_ptr(), values.as_ptr(), values.len()) })?;
        let mut count = 0;
        check(unsafe { c::torchette_method_num_outputs(self.raw, name.as_ptr(), &mut count) })?;
        let mut outputs = vec![c::EMPTY; count];
        for (i, to) in outputs.iter_mut().enumerate() {
            check(unsafe { c::torchette_method_output(self.raw, name.as_ptr(), i, to) })?;
        }
        Ok(Outputs { values: outputs, module: PhantomData })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        unsafe { c::torchette_module_free(self.raw) };
        self.bytes.clear();
    }
}

/// The outputs of an execution, which borrow the module.
pub struct Outputs<'m> {
    values: Vec<c::Value>,
    module: PhantomData<&'m mut Module>,
}

impl<'m> Outputs<'m> {
    /// Returns the number of outputs.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns whether the method has no outputs.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns an output. Fails if `index` is out of range.
    pub fn get(&self, index: usize) -> Result<Value<'_>> {
        match self.values.get(index) {
            Some(value) => Ok(Value::from_c(value)),
            None => Err(invalid(format!("output index {index} is out of range: the method has {} outputs", self.len()))),
        }
    }

    /// Returns an output tensor. Fails if `index` is out of range or the output is not a tensor.
    pub fn tensor(&self, index: usize) -> Result<Tensor<'_>> {
        match self.get(index)? {
            Value::Tensor(tensor) => Ok(tensor),
            other => Err(invalid(format!("output {index} is not a tensor: {other:?}"))),
        }
    }
}
