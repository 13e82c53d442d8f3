//! The command line: one file per subcommand. IO: standard streams.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::causes::causes;

mod connect;
mod controller;
mod cpu;
mod crd;
mod devices;
mod discover;
mod logging;
mod menu;
mod node_plugin;
mod render;
mod stdout;
mod stop;
mod table;

/// The Kubernetes operator for Dynamic Resource Allocation.
#[derive(Debug, Parser)]
#[command(name = "dra-operator", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the controller: reconcile every DraDriverConfig in the cluster.
    Controller(controller::Args),
    /// Print the CustomResourceDefinition of DraDriverConfig.
    Crd(crd::Args),
    /// Show the devices of this machine, or of a recorded one.
    Discover(discover::Args),
    /// Show what the cluster offers: its device classes and the machines behind them.
    Menu(menu::Args),
    /// Run the node plugin: serve one kind of device on this node.
    NodePlugin(node_plugin::Args),
    /// Print every object that the controller would apply for the DraDriverConfigs in a file. Does not need a cluster.
    Render(render::Args),
}

/// Parses the command line and runs the subcommand. Prints an error, with its causes, to standard error.
pub fn run() -> ExitCode {
    let done = match Cli::parse().verb {
        Verb::Controller(args) => controller::run(&args),
        Verb::Crd(args) => crd::run(&args),
        Verb::Discover(args) => discover::run(&args),
        Verb::Menu(args) => menu::run(&args),
        Verb::NodePlugin(args) => node_plugin::run(&args),
        Verb::Render(args) => render::run(&args),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", causes(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}
