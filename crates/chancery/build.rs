//! Tells the program which build profile it has, for `--version` and the texts at its start.

use std::io;
use std::path::{Path, PathBuf};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    let folder = PathBuf::from(std::env::var("OUT_DIR").map_err(io::Error::other)?);
    // Cargo names the profile nowhere else: the folder is TARGET/PROFILE/build/….
    let build = folder.ancestors().find(|folder| folder.ends_with("build"));
    let profile = build.and_then(Path::parent).and_then(Path::file_name);
    let profile = profile.and_then(|name| name.to_str()).ok_or_else(|| {
        io::Error::other(format!("{} is not in the folder of a build profile", folder.display()))
    })?;
    println!("cargo::rustc-env=CHANCERY_PROFILE={profile}");
    Ok(())
}
