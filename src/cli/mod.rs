//! The verbs, a file each. IO: the prompt.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod connect;
mod controller;
mod crd;
mod devices;
mod discover;
mod granularity;
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
    /// Serve every DraDriverConfig of the cluster.
    Controller(controller::Args),
    /// Print the CustomResourceDefinition of DraDriverConfig.
    Crd(crd::Args),
    /// Show the devices of this machine, or of a recorded one.
    Discover(discover::Args),
    /// Show who offers what: the cluster's device classes by the machines behind them.
    Menu(menu::Args),
    /// Serve a kind of device on this node.
    NodePlugin(node_plugin::Args),
    /// Print every object the controller would apply for a file of DraDriverConfigs, with no cluster.
    Render(render::Args),
}

/// Reads the command line and does what it says; errors go to standard error, with every cause.
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
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
