"""What is measured: one file a work, with TITLE, cases(settings) and measure(case, settings) -> Row."""
