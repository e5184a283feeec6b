// SPDX-License-Identifier: BSD-3-Clause
// In: TORCHETTE_PREFIX, or the command `torchette`, which prints it. Out: where the linker finds libtorchette.so.
use std::{env, path::Path, process::Command};

fn main() {
    println!("cargo:rerun-if-env-changed=TORCHETTE_PREFIX");
    let prefix = env::var("TORCHETTE_PREFIX").ok().or_else(|| {
        let done = Command::new("torchette").arg("--cmake-prefix").output().ok()?;
        done.status.success().then(|| String::from_utf8_lossy(&done.stdout).trim().to_string())
    });
    let prefix = prefix.expect("install torchette, or say where `cmake --install` has put it: TORCHETTE_PREFIX=/path");
    let library = Path::new(&prefix).join("lib");
    println!("cargo:rustc-link-search=native={}", library.display());
    println!("cargo:rustc-link-lib=dylib=torchette");
}
