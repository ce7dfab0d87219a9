# Terraform's kubernetes provider cannot create a subresource, so a mint is a command. It runs when this resource is made,
# and not at a plan or at later applies; where there is a password already it changes nothing. What it makes is a file of
# mode 0600 on the machine that runs Terraform, and not in the state. Take it from there to where it belongs.
#
# A provisioner that fails leaves the resource tainted: the next apply runs it again, and finds a password if one was made.
terraform {
  required_version = ">= 1.4"
}

variable "credential" {
  type    = string
  default = "postgres-ci.app"
}

variable "password_file" {
  type = string
}

resource "terraform_data" "password" {
  triggers_replace = [var.credential]

  provisioner "local-exec" {
    command     = "../ci/mint-once.sh \"$CREDENTIAL\" \"$PASSWORD_FILE\""
    working_dir = path.module
    environment = {
      CREDENTIAL    = var.credential
      PASSWORD_FILE = abspath(var.password_file)
    }
  }
}
