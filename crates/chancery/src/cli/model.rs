//! The options of `chancery model`.

use chancery_model_files::{ModelName, Sha256Hex};
use clap::Subcommand;
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub enum Model {
    /// Download a model, verify its checksum, and print its path; continues an interrupted download
    #[command(
        after_help = "Example:\n  chancery model pull smollm2-135m\n  chancery model pull hf:Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/qwen2.5-coder-0.5b-instruct-q8_0.gguf\n  chancery model pull https://models.example/my.gguf --sha256 HEX --name mine\n\n\
            HF_ENDPOINT names a mirror of Hugging Face; HF_TOKEN opens private repositories."
    )]
    Pull {
        /// A name shown by `chancery model list`, hf:OWNER/REPOSITORY/FILE.gguf@REVISION, or a URL
        #[arg(value_name = "MODEL")]
        reference: String,
        /// Name of the model file [default: the name of the downloaded file]
        #[arg(long, value_name = "NAME")]
        name: Option<ModelName>,
        /// Expected SHA-256 of the file
        #[arg(long, value_name = "HEX")]
        sha256: Option<Sha256Hex>,
        /// Allow an http:// URL on another machine
        #[arg(long)]
        allow_http: bool,
    },
    /// Add a GGUF file of this machine and print its path; linked where possible, else copied
    #[command(after_help = "Example:\n  chancery model import ~/Downloads/my.gguf --name mine")]
    Import {
        file: PathBuf,
        /// Name of the model file [default: the name of the file]
        #[arg(long, value_name = "NAME")]
        name: Option<ModelName>,
        /// Expected SHA-256 of the file
        #[arg(long, value_name = "HEX")]
        sha256: Option<Sha256Hex>,
    },
    /// List configured models, model files, and models available to pull, and whether each fits into memory
    #[command(after_help = "Example:\n  chancery model list --json")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete a model file and unfinished downloads of it
    #[command(after_help = "Example:\n  chancery model remove qwen2.5-coder-1.5b")]
    Remove {
        name: ModelName,
        /// Delete it even if the configuration uses it
        #[arg(long)]
        force: bool,
    },
}
