"""The writers of results, one for each form; a writer never judges and never reads a trace."""

# What a report, a comparison and a table of runs can be written as.
REPORT_FORMS = ("text", "json", "html", "markdown", "github", "junit", "csv")
COMPARISON_FORMS = ("text", "json", "html", "markdown", "github", "csv")
TABLE_FORMS = ("text", "json", "csv", "markdown", "html")
