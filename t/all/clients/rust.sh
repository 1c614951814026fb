# Compiles and runs a program in Rust with Debian's libraries.
set -e
directory=$(mktemp -d)
trap 'rm -r "$directory"' EXIT
mkdir "$directory/.cargo"
cat >"$directory/.cargo/config.toml" <<'TOML'
[source.crates-io]
replace-with = "debian"
[source.debian]
directory = "/usr/share/cargo/registry"
TOML
cat >"$directory/Cargo.toml" <<TOML
[package]
name = "client"
version = "0.0.0"
edition = "2021"
[[bin]]
name = "client"
path = "$PWD/$1"
[profile.dev]
debug = false
[dependencies]
$(sed -n 's/^\/\/ crate: //p' "$1")
TOML
cd "$directory"
cargo run --quiet --offline
