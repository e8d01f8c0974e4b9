"""What a person looks at: attention maps, and the page that shows a whole run."""
