// SPDX-License-Identifier: BSD-3-Clause
// In: TORCHETTE_PREFIX, or the command `torchette`, which prints the prefix. Out: the linker's path of libtorchette.so.
use std::{env, path::Path, process::Command};

fn main() {
    println!("cargo:rerun-if-env-changed=TORCHETTE_PREFIX");
    let prefix = env::var("TORCHETTE_PREFIX").ok().or_else(|| {
        let done = Command::new("torchette").arg("--cmake-prefix").output().ok()?;
        done.status.success().then(|| String::from_utf8_lossy(&done.stdout).trim().to_string())
    });
    let prefix = prefix.expect("torchette is not found: install it, or set TORCHETTE_PREFIX to the prefix of `cmake --install`");
    let library = Path::new(&prefix).join("lib");
    println!("cargo:rustc-link-search=native={}", library.display());
    println!("cargo:rustc-link-lib=dylib=torchette");
}
