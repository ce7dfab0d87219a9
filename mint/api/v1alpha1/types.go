package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// A Credential is the read view of one account of an application: which login it is, how its password came about, and
// who changed it. It is named <release>.<account>, has no storage of its own, and never shows a password or a stored
// form of one. Whoever may get credentials in the namespace reads all of it, the names in the history included. Its
// metadata.uid and metadata.resourceVersion are those of the Secret behind it. To get a new password, create its
// subresource mint; to shut everybody out, create its subresource revoke.
type Credential struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata. uid is the identity of the account: it changes when the application is deleted and
	// created again.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What the account is. It follows from the application and is not written through this API.
	// +optional
	Spec CredentialSpec `json:"spec,omitempty"`
	// What is known of the account's password and of the operations on it.
	// +optional
	Status CredentialStatus `json:"status,omitempty"`
}

// CredentialSpec says what the account is.
type CredentialSpec struct {
	// The application that the account is a login of.
	// +optional
	Application ApplicationReference `json:"application,omitempty"`
	// The name to log in with, as the application declares it.
	// +optional
	Username string `json:"username,omitempty"`
	// How the password is stored, by the definition of the application's kind: scram-sha-256, mysql-native, sha256,
	// apr1, bcrypt, plaintext, or the name of a format of the platform's own.
	// +optional
	Format string `json:"format,omitempty"`
}

// ApplicationReference names an application in the credential's namespace.
type ApplicationReference struct {
	// The application's kind, such as Postgres.
	// +optional
	Kind string `json:"kind,omitempty"`
	// The application's name, without the prefix that its release bears.
	// +optional
	Name string `json:"name,omitempty"`
}

// CredentialStatus is what is known of the account's password and of the operations on it.
type CredentialStatus struct {
	// How the current password came about.
	// +optional
	Password PasswordStatus `json:"password,omitempty"`
	// The newest operations on the account, at most ten, newest first. That an operation happened, which one, and when
	// stands in the account's own ledger; who asked for it comes from the audit log of the Kubernetes API server.
	// +optional
	// +listType=atomic
	History []Operation `json:"history,omitempty"`
	// Where the account's ledger and the audit log disagree. Empty is good.
	// +optional
	// +listType=atomic
	Findings []Finding `json:"findings,omitempty"`
}

// Where a password came from: the values of status.password.origin.
const (
	// OriginNotIssued: the stored form is that of random bytes nobody ever saw. Mint to get a password.
	OriginNotIssued = "NotIssued"
	// OriginMigrated: taken over from where the platform kept passwords before.
	OriginMigrated = "Migrated"
	// OriginMinted: made here and shown once to whoever asked.
	OriginMinted = "Minted"
	// OriginRevoked: replaced by one that nobody saw.
	OriginRevoked = "Revoked"
)

// PasswordStatus says how the current password came about.
type PasswordStatus struct {
	// NotIssued: nobody ever saw it; mint to get one. Migrated: taken over from where the platform kept it before.
	// Minted: made by mint and shown once, to whoever asked. Revoked: replaced by one that nobody saw. It tells what is
	// stored; when the application has taken it over is another matter.
	// +optional
	Origin string `json:"origin,omitempty"`
	// When it was stored, in microseconds by the mint server's clock.
	// +optional
	At *metav1.MicroTime `json:"at,omitempty"`
	// The revision of the newest operation, counted from 1; absent if there was none.
	// +optional
	Revision int64 `json:"revision,omitempty"`
	// Why the application cannot take the password over for now, for people: its release is suspended, for one. Absent
	// where nothing that the platform knows of stands in the way, which does not say that it has been taken over.
	// +optional
	Waiting string `json:"waiting,omitempty"`
}

// What changes a password: the values of status.history[].operation.
const (
	OperationCreate  = "Create"
	OperationMigrate = "Migrate"
	OperationMint    = "Mint"
	OperationRevoke  = "Revoke"
)

// On whose word a name in the history stands: the values of status.history[].attribution.
const (
	AttributionAuditLog     = "AuditLog"
	AttributionPlatform     = "Platform"
	AttributionPending      = "Pending"
	AttributionUnattributed = "Unattributed"
	AttributionExpired      = "Expired"
)

// What is known of the answer to an operation: the values of status.history[].response.
const (
	ResponseSuccess = "Success"
	ResponseUnknown = "Unknown"
)

// An Operation changed the account's password.
type Operation struct {
	// Identifies the operation: 128 random bits in hexadecimal. The newest operation's id is what scripts should give
	// as a precondition of the next.
	ID string `json:"id"`
	// One more than the operation before, beginning at 1.
	Revision int64 `json:"revision"`
	// Create and Migrate are the platform's own doing. Mint made a new password and showed it once. Revoke made one
	// that nobody saw.
	Operation string `json:"operation"`
	// When the new password was stored, in microseconds by the mint server's clock.
	At metav1.MicroTime `json:"at"`
	// The user on whose behalf the request ran, as the audit log has it. Absent unless attribution is AuditLog.
	// +optional
	By string `json:"by,omitempty"`
	// The user who really authenticated, if the request ran on behalf of another. Absent where the log contradicts
	// itself in this (see findings).
	// +optional
	ImpersonatedBy string `json:"impersonatedBy,omitempty"`
	// On whose word the name stands. AuditLog: on the API server's audit log. Platform: there was no request. Pending:
	// the log's event has not come yet. Unattributed: none came within two minutes; see findings. Expired: no event is
	// known, and the operation is older than what the platform retains of the log.
	Attribution string `json:"attribution"`
	// What the log says of the answer. Success: it was sent. Unknown: the operation took effect and its answer may
	// never have arrived; whoever needs the password mints again. Absent where nothing is known.
	// +optional
	Response string `json:"response,omitempty"`
}

// A Finding is a place where the account's ledger and the audit log disagree.
type Finding struct {
	// Unattributed: an operation did not pass the audit log, or the log lost it. Mismatch: the log has another user
	// under the operation's audit id. Conflict: the log contradicts itself about the operation. Skewed: all agrees but
	// the time. Uncommitted: the log reports a success that the account does not have. OutOfBand: the stored password
	// is not what the newest operation wrote. Restored: the account's Secret was recreated with its old contents.
	// BrokenLedger: the account's record of its operations is not readable. Gap: part of the log is known to be missing
	// where an unattributed operation lies.
	Type string `json:"type"`
	// The revision of the operation concerned; absent where there is none.
	// +optional
	Revision int64 `json:"revision,omitempty"`
	// What was found, for people.
	Message string `json:"message"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// CredentialList is a list of credentials of one namespace.
type CredentialList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// The credentials, ordered by name. Accounts that have no password yet and none seeded are not among them; they
	// can be minted all the same.
	Items []Credential `json:"items"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// A CredentialMint asks for a new password, made by the server and shown in the answer, once. Create it at the
// subresource mint of a credential. Nothing but apiVersion and kind needs to be filled in. The answer says that the
// password is stored; when the application has taken it over is another matter.
type CredentialMint struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata. A name may be given if it is the credential's.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What is asked for.
	// +optional
	Spec MintSpec `json:"spec,omitempty"`
	// The answer. What a request holds here is ignored.
	// +optional
	Status MintStatus `json:"status,omitempty"`
}

// MintSpec says what a mint asks for.
type MintSpec struct {
	// What must be true of the account, or nothing is done and the answer is 409 Conflict.
	// +optional
	Preconditions *Preconditions `json:"preconditions,omitempty"`
}

// MintStatus answers a mint.
type MintStatus struct {
	// The name to log in with.
	// +optional
	Username string `json:"username,omitempty"`
	// The new password, at least 32 characters. It is kept nowhere: this answer is the one place where it stands.
	// Absent in the answer to a dry run.
	// +optional
	Password string `json:"password,omitempty"`
	// Identifies the operation in the credential's history. Absent in the answer to a dry run.
	// +optional
	ID string `json:"id,omitempty"`
	// The operation's revision in the credential's history.
	// +optional
	Revision int64 `json:"revision,omitempty"`
	// When the password was stored, in microseconds by the mint server's clock.
	// +optional
	At metav1.MicroTime `json:"at,omitzero"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// A CredentialRevoke asks that the account's password be replaced by one that nobody sees. Create it at the subresource
// revoke of a credential. Nothing but apiVersion and kind needs to be filled in. The answer says that the replacement is
// stored; when the application has taken it over, and whether sessions that are open stay open, is another matter.
type CredentialRevoke struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata. A name may be given if it is the credential's.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What is asked for.
	// +optional
	Spec RevokeSpec `json:"spec,omitempty"`
	// The answer. What a request holds here is ignored.
	// +optional
	Status RevokeStatus `json:"status,omitempty"`
}

// RevokeSpec says what a revoke asks for.
type RevokeSpec struct {
	// What must be true of the account, or nothing is done and the answer is 409 Conflict.
	// +optional
	Preconditions *Preconditions `json:"preconditions,omitempty"`
}

// RevokeStatus answers a revoke.
type RevokeStatus struct {
	// The name that nobody can log in with any more, once the application has taken the change over.
	// +optional
	Username string `json:"username,omitempty"`
	// Identifies the operation in the credential's history. Absent in the answer to a dry run.
	// +optional
	ID string `json:"id,omitempty"`
	// The operation's revision in the credential's history.
	// +optional
	Revision int64 `json:"revision,omitempty"`
	// When the replacement was stored, in microseconds by the mint server's clock.
	// +optional
	At metav1.MicroTime `json:"at,omitzero"`
}

// Preconditions must all be true of the account, or nothing is done and the answer is 409 Conflict. What is absent is
// not checked.
type Preconditions struct {
	// The id of the newest operation in the credential's history. Scripts should give this one: it fails if anybody
	// minted or revoked in between, and does not if nothing but the history was written.
	// +optional
	ID *string `json:"id,omitempty"`
	// The revision of the newest operation. 0: the account must not exist yet.
	// +optional
	Revision *int64 `json:"revision,omitempty"`
	// The credential's metadata.resourceVersion. It changes with every write of the account's Secret, the history's
	// included.
	// +optional
	ResourceVersion *string `json:"resourceVersion,omitempty"`
	// The credential's metadata.uid. It fails if the application was deleted and created again.
	// +optional
	UID *types.UID `json:"uid,omitempty"`
}
