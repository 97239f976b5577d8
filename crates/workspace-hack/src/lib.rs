//! Makes every package's tests build their dependencies with the features of the whole workspace, so that `cargo test -p X` after
//! `make test` recompiles nothing but X. A dev-dependency of every package; it has no code and is not in the binary. `make lint`
//! checks that its list of dependencies is complete.
