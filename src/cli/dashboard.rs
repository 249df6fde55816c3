//! `--dashboard ADDR`, of the commands that run something.

use std::net::SocketAddr;

use clap::Args;

use super::output::{fail, print_line};
use super::{Common, Exit, Format};
use tombolo::observe::{Bounds, Dashboard, DashboardError, Picture};
use tombolo_core::plan::Plan;

/// The option.
#[derive(Debug, Args)]
pub struct Page {
    /// Serve a page that shows the run as it goes, its metrics and its events, at this loopback address, 127.0.0.1:0 for a free port; whoever wants to see it needs the token of the address that is printed.
    #[arg(long = "dashboard", value_name = "ADDR")]
    address: Option<SocketAddr>,
}

impl Page {
    /// Begins to serve if that was asked for, and says where.
    pub async fn serve(&self, common: &Common, plan: &Plan) -> Result<Option<Dashboard>, Exit> {
        self.show(common, Picture::of_plan(plan, Bounds::LIVE))
            .await
    }

    /// The same, with a picture that is there already.
    pub async fn show(&self, common: &Common, picture: Picture) -> Result<Option<Dashboard>, Exit> {
        let Some(address) = self.address else {
            return Ok(None);
        };
        match Dashboard::serve(address, picture).await {
            Ok(page) => {
                let url = page.url();
                match common.format {
                    Format::Json => {
                        print_line(&serde_json::json!({ "event": "dashboard", "url": url }));
                    }
                    Format::Text => say!("dashboard: {url}"),
                }
                Ok(Some(page))
            }
            Err(error) => {
                fail(common, &error.to_string());
                Err(match error {
                    DashboardError::Listen { .. } => Exit::Failed,
                    _ => Exit::Usage,
                })
            }
        }
    }

    /// Whether there is to be a page.
    pub fn is_asked(&self) -> bool {
        self.address.is_some()
    }
}
