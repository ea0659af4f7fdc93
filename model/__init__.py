"""What is planned: operators, graphs, layouts, machines and their costs."""
