"""From results to pages: statistics, tables, figures, HTML and Markdown; nothing here imports torch."""
