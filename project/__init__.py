"""The example project: settings, URLs and a demo app that show how durableflow is used."""
